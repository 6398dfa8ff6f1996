"""Traced work of clients that compute with a part of their samples, or with layers that torch has fused kernels for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.devices.test_work import CLASSES, IMAGES, TRAIN, counted, packet_of, shard_of, task_of
from undergrowth.core import Carry, Context, Model, Packet, Shard, State, Steps, Task
from undergrowth.devices import Tracer
from undergrowth.learning import GradientClient, Trained
from undergrowth.methods import FedAT, Interleaved, Moon


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_maps_that_fedat_sends_are_those_of_whole_samples(share: float) -> None:
    task = task_of("cnn", hidden=16)
    down, client = packet_of(task), FedAT(metadata_share=share).client
    for size in (5, 22):  # 0.3 of them: 1.5 and 6.6
        real = counted(task, client, down, shard_of(size))
        assert Tracer(task, client, IMAGES).work(down, size).flops == real


@pytest.mark.parametrize("tags", [{"seed": "1"}, {}])
def test_updates_that_send_the_same_number_do_not_weigh_twice(tags: dict[str, str]) -> None:
    task = task_of("mlp", (12,))
    client, down, shard = Interleaved().client, packet_of(task), shard_of(9, (12,))
    down = Packet(down.tensors, tags={"phase": "compare", **tags})
    up, _ = client.local(task, down, shard, {}, Context(0, "device", 0))
    assert Tracer(task, client, (12,)).work(down, 9).bytes_up == up.nbytes


def test_the_state_of_a_device_that_took_part_before_is_known_without_training() -> None:
    task = task_of("cnn", hidden=16)
    client, down, shard = Moon().client, packet_of(task), shard_of(22)
    tracer = Tracer(task, client, IMAGES)
    _, own = client.local(task, down, shard, {}, Context(0, "device", 0))
    again = tracer.work(down, 22, tracer.state_after(down))
    assert again == tracer.work(down, 22, own)
    assert again.flops == counted(task, client, down, shard, own) > tracer.work(down, 22).flops


class Remembers(GradientClient):
    """Keeps its model, and reads a value of it in the next job."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        if own:
            float(own["model"]["head.bias"][0])
        return super().begin(task, down, shard, own, context)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return trained.packet, {"model": dict(trained.tensors)}


def test_a_state_whose_values_are_read_costs_the_same_whether_it_shares_memory_or_has_no_values() -> None:
    task = task_of("mlp", (12,))
    client, down = Remembers(), packet_of(task)
    model = {name: value.clone() for name, value in down.tensors.items()}
    states = {"model": dict(down.tensors)}, {"model": model}, Tracer(task, client, (12,)).state_after(down)
    works = [Tracer(task, client, (12,)).work(down, 9, own) for own in states]
    assert works[0] == works[1] == works[2]


class Attends(torch.nn.Module):
    """Attention, and a whole layer of a transformer, which torch computes by other kernels without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.attention(x, x, x, need_weights=False)[0]).mean(1))


class Evaluates(GradientClient):
    """Evaluates its shard before the steps, and may read the values of its weights."""

    def __init__(self, reads_values: bool) -> None:
        super().__init__()
        self.reads_values = reads_values

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        if self.reads_values:
            float(down.tensors["head.bias"][0])
        task.model.run(down.tensors, shard.x)
        return super().begin(task, down, shard, own, context)


def test_attention_costs_the_same_on_real_tensors():
    """Torch's fused kernels of attention have no FLOP formula; meta tensors do not take them."""
    task = Task(Model(Attends), CLASSES, TRAIN)
    down = packet_of(task)
    by_shapes, by_values = (Tracer(task, Evaluates(reads), (6, 8)).work(down, 20) for reads in (False, True))
    assert by_values.flops == by_shapes.flops > 0
    assert by_values.memory == by_shapes.memory

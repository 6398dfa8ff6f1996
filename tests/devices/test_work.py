"""Traced work compared with torch's FLOP counter around a real execution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from undergrowth.core import (
    Batch,
    Carry,
    Client,
    Context,
    LoopClient,
    Model,
    Packet,
    RunError,
    Shard,
    State,
    Steps,
    Task,
    Train,
)  # fmt: skip
from undergrowth.core.precision import bfloat16_on
from undergrowth.devices import Tracer
from undergrowth.devices.meter import Meter
from undergrowth.engines.vector.stacked_loops import StackedLoops
from undergrowth.learning import CrossEntropy, GradientClient, Proximal, Trained, elastic_loss
from undergrowth.learning.selectors import (
    EntropySelector,
    FewShotSelector,
    HighestLossSelector,
    KMeansSelector,
    RandomSelector,
)
from undergrowth.methods import Adapt
from undergrowth.models.catalogue import builder

CLASSES = 5
TRAIN = Train(epochs=2, batch=8, momentum=0.9)
IMAGES = (3, 8, 8)


def task_of(name: str = "wrn-10-1", shape: tuple[int, ...] = IMAGES, train: Train = TRAIN, **options: Any) -> Task:
    return Task(Model(builder(name, shape, CLASSES, **options)), CLASSES, train)


def shard_of(size: int, shape: tuple[int, ...] = IMAGES, dtype: torch.dtype = torch.float32) -> Shard:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, *shape, generator=generator)
    if dtype is torch.int64:
        x = torch.randint(CLASSES, (size, *shape), generator=generator)
    return Shard(x, torch.randint(CLASSES, (size,), generator=generator))


def packet_of(task: Task, **scalars: float) -> Packet:
    return Packet(task.model.initial(0), scalars)


def counts_of(labels: torch.Tensor) -> tuple[int, ...]:
    return tuple(torch.bincount(labels).tolist())


def counted(task: Task, client: Client, down: Packet, shard: Shard, own: State | None = None) -> int:
    with FlopCounterMode(display=False) as counter:
        client.local(task, down, shard, own or {}, Context(0, "device", 0))
    return counter.get_total_flops()


@dataclass(frozen=True)
class ForwardOnly(LoopClient):
    """Evaluates and reports: work without a backward pass."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        order = torch.arange(len(shard))
        return {"weights": down.tensors, "right": 0}, Steps({"x": shard.x, "y": shard.y}, (order,), task.train.batch)

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        with torch.no_grad():
            logits = task.model(carry["weights"], batch["x"])
        return {**carry, "right": carry["right"] + (logits.argmax(-1) == batch["y"]).sum()}

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        return Packet({}, {"right": float(carry["right"])}), own


class Evaluated(GradientClient):
    """Runs the model on the whole shard before and after training, and reads numbers out of the results."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        return {**carry, "before": self._loss(task, down.tensors, shard)}, steps

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        up, own = super().finish(task, down, carry, shard, own, context)
        after = self._loss(task, {**down.tensors, **up.tensors}, shard)
        return Packet(up.tensors, {"gain": float(carry["before"] - after)}), own

    def _loss(self, task: Task, weights: Any, shard: Shard) -> torch.Tensor:
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(task.model(weights, shard.x), shard.y)


class StopsEarly(Evaluated):
    """Chooses the number of epochs by a value of the model's output, which needs real tensors."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        return carry, replace(steps, epochs=steps.epochs[:1]) if carry["before"].item() > 0 else steps


class Ordered(GradientClient):
    """Trains the number of epochs that the server sends."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        return carry, replace(steps, epochs=steps.epochs[:1] * int(down.scalars["epochs"]))


@dataclass(frozen=True)
class Plain:
    """A client that only has `local`."""

    inner: GradientClient = GradientClient()

    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        return self.inner.local(task, down, shard, own, context)


CLIENTS = {
    "fedavg": GradientClient(),
    "fedprox": GradientClient(objective=CrossEntropy() + Proximal(0.1)),
    "upper half": GradientClient(split="mid"),
    "head only": GradientClient(split="head"),
    "a random fraction": GradientClient(selector=RandomSelector(0.3)),
    "by entropy": GradientClient(split="mid", selector=EntropySelector(0.5)),
    "by loss": GradientClient(selector=HighestLossSelector(0.25)),
    "by clusters": GradientClient(selector=KMeansSelector(0.3)),
    "few shots": GradientClient(selector=FewShotSelector(2)),
    "forward only": ForwardOnly(),
    "before and after": Evaluated(),
    "before the steps": GradientClient(elastic_loss(1.0), held_out=0.3),
    "plain": Plain(),
}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("model", ["wrn-10-1", "cnn"])
def test_flops_are_those_of_real_execution(name, model):
    task = task_of(model, **({"hidden": 16} if model == "cnn" else {}))
    down = packet_of(task)
    tracer = Tracer(task, CLIENTS[name], IMAGES)
    # Less than a batch, one batch, a partial last one, whole ones. The larger model is slow to count.
    for size in (2, 7, 8, 21, 40) if model == "cnn" else (21,):
        shard = shard_of(size)
        real = counted(task, CLIENTS[name], down, shard)
        assert tracer.work(down, size, labels=lambda y=shard.y: counts_of(y)).flops == pytest.approx(real, rel=0.01), (
            size
        )


def test_one_sample():
    task = task_of("cnn", hidden=16)
    down = packet_of(task)
    work = Tracer(task, GradientClient(), IMAGES).work(down, 1)
    assert work.flops == counted(task, GradientClient(), down, shard_of(1))
    assert (work.steps, work.samples) == (2, 2)


@pytest.mark.parametrize("fraction", [0.1, 0.4, 0.9])
def test_validation_samples_are_whole_and_never_all(fraction):
    """A fraction of few samples is rounded; of one sample, none is held out. The same goes for later jobs."""
    task = task_of("mlp", (12,))
    client, down = Adapt(validation=fraction, patience=2).client, packet_of(task)
    tracer = Tracer(task, client, (12,))
    for size in (1, 2, 3, 5, 6, 14, 105):
        shard = shard_of(size, (12,))
        assert tracer.work(down, size).flops == counted(task, client, down, shard)
        _, own = client.local(task, down, shard, {}, Context(0, "device", 0))
        assert tracer.work(Packet(), size, own).flops == counted(task, client, Packet(), shard, own)


def test_batches_larger_than_the_data_and_of_one_sample():
    for batch in (1, 2, 1000):
        task = task_of("cnn", train=Train(batch=batch), hidden=16)
        down = packet_of(task)
        work = Tracer(task, GradientClient(), IMAGES).work(down, 11)
        assert work.flops == counted(task, GradientClient(), down, shard_of(11))
        assert work.steps == -(-11 // batch)


def test_steps_and_samples():
    task = task_of()
    work = Tracer(task, GradientClient(), IMAGES).work(packet_of(task), 21)
    assert (work.steps, work.samples) == (2 * 3, 2 * 21)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "options"),
    [
        ("mlp", (12,), torch.float32, {}),
        ("resnet-8", IMAGES, torch.float32, {"norm": "group"}),
        ("lstm", (6,), torch.int64, {"vocabulary": 10, "hidden": 8}),
    ],
)
def test_other_models_and_inputs(name, shape, dtype, options):
    task = task_of(name, shape, **options)
    down, shard = packet_of(task), shard_of(13, shape, dtype)
    # oneDNN computes an LSTM in one operation, which torch counts as nothing.
    fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        real = counted(task, GradientClient(), down, shard)
    finally:
        torch._C._set_mkldnn_enabled(fused)
    assert real > 0
    assert Tracer(task, GradientClient(), shape, dtype).work(down, 13).flops == pytest.approx(real, rel=0.01)


def test_a_convolution_in_groups_costs_as_much_backward_as_its_groups_alone():
    """torch's formula for the gradient of the weights does not know of groups."""
    flops = {}
    for groups, channels in ((4, 8), (1, 2)):
        weight = torch.randn(channels, channels // groups, 3, 3, requires_grad=True)
        x = torch.randn(5, channels, 6, 6, requires_grad=True)
        with Meter() as meter:
            torch.nn.functional.conv2d(x, weight, padding=1, groups=groups).sum().backward()
        flops[groups] = meter.flops
    forward = 2 * 5 * 6 * 6 * 2 * 2 * 9
    assert flops == {1: 3 * forward, 4: 4 * 3 * forward}


def test_a_frozen_part_has_no_backward_pass():
    task = task_of(train=Train(batch=8))
    down = packet_of(task)
    forward = Tracer(task, ForwardOnly(), IMAGES).work(down, 8)
    head = Tracer(task, GradientClient(split="head"), IMAGES).work(down, 8)
    full = Tracer(task, GradientClient(), IMAGES).work(down, 8)
    last_layer = 2 * 8 * 64 * CLASSES
    assert head.flops == forward.flops + last_layer  # the gradient of the last layer's weights, nothing else
    assert full.flops > 2.5 * forward.flops
    assert head.memory < 0.6 * full.memory


def test_a_pruned_model_costs_less():
    """The same architecture with fewer hidden units."""
    full, thin = (task_of("cnn", hidden=hidden) for hidden in (512, 64))
    work = {}
    for task in (full, thin):
        down = packet_of(task)
        work[task] = Tracer(task, GradientClient(), IMAGES).work(down, 20)
        assert work[task].flops == counted(task, GradientClient(), down, shard_of(20))
    assert work[thin].flops < work[full].flops
    assert work[thin].memory < work[full].memory


def test_a_client_that_reads_values_is_traced_on_real_tensors():
    task = task_of("cnn", hidden=16)
    down, client = packet_of(task), StopsEarly()
    for size in (5, 20):
        real = counted(task, client, down, shard_of(size))
        assert Tracer(task, client, IMAGES).work(down, size).flops == pytest.approx(real, rel=0.01)


def test_labels_are_read_only_for_clients_that_use_them():
    task = task_of("cnn", hidden=16)
    down = packet_of(task)
    one_class, all_classes = (20,), (4,) * CLASSES
    few = Tracer(task, GradientClient(selector=FewShotSelector(2)), IMAGES)
    assert few.work(down, 20, labels=lambda: one_class).samples == 2 * 2
    assert few.work(down, 20, labels=lambda: all_classes).samples == 2 * 2 * CLASSES
    assert few.work(down, 20).samples == 2 * 2 * CLASSES  # without labels all classes are as frequent
    every = Tracer(task, GradientClient(), IMAGES)
    assert every.work(down, 20, labels=lambda: pytest.fail("labels are not needed")).samples == 2 * 20


def test_a_server_may_send_the_number_of_epochs():
    task = task_of("mlp", (12,))
    tracer = Tracer(task, Ordered(), (12,))
    assert [tracer.work(packet_of(task, epochs=n), 8).steps for n in (1, 3)] == [1, 3]


def test_own_state_counts_as_memory():
    task = task_of("mlp", (12,))
    tracer, down = Tracer(task, GradientClient(), (12,)), packet_of(task)
    extra = tracer.work(down, 8, {"previous": task.model.initial(1)}).memory - tracer.work(down, 8).memory
    assert extra == down.nbytes


def test_tracing_leaves_the_model_usable():
    task = task_of()
    down, shard = packet_of(task), shard_of(9)
    before = task.model(down.tensors, shard.x)
    Tracer(task, GradientClient(), IMAGES).work(down, 9)
    assert torch.equal(task.model(down.tensors, shard.x), before)


def test_jobs_of_the_same_kind_are_traced_once(monkeypatch):
    task = task_of("mlp", (12,))
    tracer, down = Tracer(task, GradientClient(), (12,)), packet_of(task)
    expected = tracer.work(down, 50)
    for name in ("step", "before_steps"):
        monkeypatch.setattr(GradientClient, name, lambda *_: pytest.fail("a step is traced again"))
    tracer.work(down, 60)  # another size calls `begin` only
    monkeypatch.setattr(GradientClient, "begin", lambda *_: pytest.fail("the job is traced again"))
    assert tracer.work(down, 50) == expected
    assert tracer.work(packet_of(task), 50) == expected  # another packet with the same shapes


class Raising(GradientClient):
    def upload(self, trained: Trained) -> tuple[Packet, State]:
        raise ValueError("no network")


def test_a_client_that_raises_is_named() -> None:
    task = task_of()
    with pytest.raises(RunError, match="the client Raising failed while its work was priced: ValueError: no network"):
        Tracer(task, Raising(), IMAGES).work(packet_of(task), 16)


def test_a_price_does_not_depend_on_how_the_engine_computes_several_models():
    task = task_of("mlp")
    client, down = Adapt(validation=0.2, patience=1).client, packet_of(task)
    stacked = replace(task, run_loops=StackedLoops(None))
    assert Tracer(stacked, client, IMAGES).work(down, 100) == Tracer(task, client, IMAGES).work(down, 100)


@pytest.mark.parametrize("model", ["wrn-10-1", "cnn", "mlp"])
def test_a_price_in_bfloat16_is_that_of_real_values(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's autocast refuses meta tensors, and counting on real values takes many times as long."""
    task = task_of(model)
    mixed = task.with_models(lambda each: each.with_precision(True))
    found = Tracer(mixed, GradientClient(), IMAGES).work(packet_of(task), 16)
    assert found.memory < Tracer(task, GradientClient(), IMAGES).work(packet_of(task), 16).memory

    def only_real(device_type: str) -> Any:
        if device_type == "meta":
            raise RuntimeError("not on meta tensors")
        return bfloat16_on(device_type)

    monkeypatch.setattr("undergrowth.core.model.bfloat16_on", only_real)
    real = Tracer(mixed, GradientClient(), IMAGES).work(packet_of(task), 16)
    assert found.flops == real.flops and found.memory == pytest.approx(real.memory, rel=0.01)

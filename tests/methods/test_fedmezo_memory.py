"""A device that measures slopes needs the memory of inference, in prices and in real steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undergrowth as ug
from undergrowth.bench.memory import BATCH, MODELS, MOST, TOKENS, TextTransformer, build_task, measure
from undergrowth.core import Context, Packet, Shard
from undergrowth.data import Dataset
from undergrowth.devices import Tracer
from undergrowth.devices.meter import Meter
from undergrowth.methods import DistMeZO, FedAvg, FedMeZO
from undergrowth.methods.fedmezo.replica import RoundOf
from undergrowth.runs.planning import takes_part

NONE = torch.zeros(0, 2, dtype=torch.int32)


@pytest.mark.parametrize("name", MODELS)
def test_the_priced_memory_is_that_of_inference(name: str) -> None:
    task = build_task(*MODELS[name]).to("meta")
    weights, x = task.model.initial(0), torch.zeros(BATCH, TOKENS, dtype=torch.int64, device="meta")
    with Meter() as meter, torch.no_grad():
        meter.hold((weights, x))
        task.model(weights, x)
    first = {"round": RoundOf(0, 0).write(NONE), "slopes": NONE, **{f"model/{k}": v for k, v in weights.items()}}
    later = {"round": RoundOf(0, 3).write(NONE), "slopes": torch.zeros(3, 2, dtype=torch.int32)}
    own = {"model": weights, "round": 0}

    def price(client: object, down: dict[str, torch.Tensor], state: dict[str, object]) -> int:
        return Tracer(task, client, (TOKENS,), torch.int64).work(Packet(down), 100, state).memory  # type: ignore[arg-type]

    assert meter.peak <= price(FedMeZO().client, first, {}) <= MOST * meter.peak
    assert meter.peak <= price(FedMeZO().client, later, own) <= MOST * meter.peak
    assert meter.peak <= price(DistMeZO().client, dict(weights), {}) <= MOST * meter.peak
    assert price(FedAvg().client, dict(weights), {}) > 2 * meter.peak


def test_a_real_job_allocates_no_second_model() -> None:
    task = build_task(2_000, 96, 2)
    weights = {name: torch.full(shape, 0.01) for name, shape in task.model.shapes.items()}
    shard = Shard(torch.zeros(2 * BATCH, TOKENS, dtype=torch.int64), torch.zeros(2 * BATCH, dtype=torch.int64))
    with Meter() as inference, torch.no_grad():
        inference.hold((weights, shard.x[:BATCH].clone()))
        task.model(weights, shard.x[:BATCH])
    own, down = {"model": weights, "round": 0}, Packet({"round": torch.tensor([5, 1]), "slopes": NONE.new_zeros(1, 2)})
    with Meter() as meter:
        meter.hold(own)
        meter.ignore(shard.x, shard.y)
        _, kept = FedMeZO().client.on_device().local(task, down, shard, own, Context(0, "device", 1))
    assert inference.peak <= meter.peak <= MOST * inference.peak
    assert all(kept["model"][name] is value for name, value in weights.items())


@pytest.mark.slow
def test_a_plan_shows_that_phones_can_train_100_million_parameters_with_fedmezo_only() -> None:
    def build() -> nn.Module:
        with torch.device("meta"):
            module = TextTransformer(*MODELS["100 M parameters"])
        module = module.to_empty(device="cpu")
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        return module

    tokens, labels = torch.zeros(160, TOKENS, dtype=torch.int64), torch.arange(160) % 4
    data = Dataset("texts", tokens, labels, tokens[:8], labels[:8], classes=4)
    settings = {"fleet": "phones", "clients": 10, "partition": "iid", "batch": 16, "deadline": 150}
    rows = ug.plan(["fedmezo", "fedavg"], data=data, model=build, **settings)
    assert takes_part(rows) == {"fedmezo": 10, "fedavg": 0}
    verdicts = {(row["method"], row["device"]): row["verdict"] for row in rows}
    assert verdicts["fedavg", "phone-low"] == "too big"
    cheap = [row for row in rows if row["method"] == "fedmezo"]
    assert {(row["verdict"], row["bytes_down"], row["bytes_up"]) for row in cheap} == {("fits", 24, 24)}


@pytest.mark.slow
def test_the_measured_memory_is_that_of_inference() -> None:
    lines = [line for line in measure() if not isinstance(line, str)]
    assert len(lines) == len(MODELS)
    assert all(line.met for line in lines)  # type: ignore[union-attr]

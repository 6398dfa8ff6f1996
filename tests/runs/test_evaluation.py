"""The scores of a model do not depend on how many threads compute them, or on the models beside it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undergrowth.core import Classification, Method, Model, Shard, State, Task, Weights
from undergrowth.learning.reference import MeasuringClient
from undergrowth.models import builder
from undergrowth.runs import evaluation
from undergrowth.runs.run_models import RunModels

SAMPLES = 3 * evaluation.CPU_BATCH + 17


def sample(name: str) -> tuple[Model, dict[str, torch.Tensor], Shard]:
    model = Model(builder(name, (1, 8, 8), 10))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((SAMPLES, 1, 8, 8), generator=generator)
    return model, model.initial(0), Shard(x, torch.randint(0, 10, (SAMPLES,), generator=generator))


@pytest.mark.parametrize("name", ["cnn", "wrn-10-1"])
def test_any_number_of_cores_gives_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, shard = sample(name)
    torch.set_num_threads(1)
    monkeypatch.setattr(evaluation, "BATCHES_PER_THREAD", 1)
    scores = []
    for cores in (1, 2, 3, 8):
        monkeypatch.setattr(evaluation, "cores", lambda cores=cores: cores)
        scores.append(evaluation.evaluate(Classification(), model, weights, shard))
    assert scores.count(scores[0]) == 4 and torch.get_num_threads() == 1


def test_scores_are_those_of_one_pass_over_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, shard = sample("mlp")
    monkeypatch.setattr(evaluation, "cores", lambda: 2)
    monkeypatch.setattr(evaluation, "BATCHES_PER_THREAD", 1)
    with torch.no_grad():
        logits = model(weights, shard.x)
    scores = evaluation.evaluate(Classification(), model, weights, shard)
    assert scores["accuracy"] == (logits.argmax(1) == shard.y).double().mean().item()
    assert scores["loss"] == pytest.approx(F.cross_entropy(logits.double(), shard.y).item(), rel=1e-6)


def test_a_copy_for_another_thread_has_other_layers_and_the_same_tensors() -> None:
    model, weights, shard = sample("wrn-10-1")
    copied = model.for_another_thread()
    assert copied.module is not model.module
    assert [id(each) for each in copied.module.parameters()] == [id(each) for each in model.module.parameters()]
    assert torch.equal(copied(weights, shard.x[:4]), model(weights, shard.x[:4]))


def test_a_copy_for_another_thread_keeps_the_levels_that_a_user_named() -> None:
    layers = nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10)
    model = Model(lambda: nn.Sequential(*copy.deepcopy(layers))).with_levels({"mine": "1"})
    assert model.for_another_thread().levels == {"mine": "1"}


class Devices:
    """Devices with up to five test samples each; the first has none."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.devices = tuple(f"device-{number}" for number in range(7))

    def test(self, device: str) -> Shard:
        number = int(device[-1])
        return self.shard.take(torch.arange(10 * number, 10 * number + min(number, 5)))


class OwnModels(Method):
    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        weights: Weights = own["model"]
        return weights


@pytest.mark.parametrize("mixes", [False, True])
def test_devices_with_models_of_their_own_are_evaluated_together(mixes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose outputs depend on the other samples of a batch is evaluated one device after the other."""
    build, (_, _, shard) = builder("mlp", (1, 8, 8), 10), sample("mlp")
    model = Model(lambda: (MixingNet(build()) if mixes else build()).double())
    shard = Shard(shard.x.double(), shard.y)
    task, population = Task(model, 10), Devices(shard)
    own = {device: {"model": model.initial(number)} for number, device in enumerate(population.devices)}
    widest, plain = [0], MeasuringClient.step

    def watched(self: Any, task: Task, carry: Any, batch: Any) -> Any:
        widest[0] = max(widest[0], len(batch["y"]))
        return plain(self, task, carry, batch)

    monkeypatch.setattr(MeasuringClient, "step", watched)
    models = RunModels(OwnModels(), task, {"model": model.initial(9)}, own)
    found = models.score_devices(population)  # type: ignore[arg-type]
    for device in population.devices[1:]:
        alone = evaluation.evaluate(Classification(), model, own[device]["model"], population.test(device))
        assert found[device] == {"accuracy": alone["accuracy"]}
    assert population.devices[0] not in found and (widest[0] > 2 * 8) != mixes  # two are tried


class MixingNet(nn.Module):
    """Subtracts the mean over the batch from the logits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits - logits.mean(0)

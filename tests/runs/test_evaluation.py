"""The scores of a model do not depend on how many threads compute them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from undergrowth.core import Classification, Model, Shard
from undergrowth.models import builder
from undergrowth.runs import evaluation

SAMPLES = 3 * evaluation.CPU_BATCH + 17


def sample(name: str, seed: int = 0) -> tuple[Model, dict[str, torch.Tensor], Shard]:
    model = Model(builder(name, (1, 8, 8), 10))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((SAMPLES, 1, 8, 8), generator=generator)
    return model, model.initial(seed), Shard(x, torch.randint(0, 10, (SAMPLES,), generator=generator))


@pytest.mark.parametrize("name", ["cnn", "wrn-10-1"])
def test_any_number_of_cores_gives_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, shard = sample(name)
    torch.set_num_threads(1)
    scores = []
    for cores in (1, 2, 3, 8):
        monkeypatch.setattr(evaluation, "cores", lambda cores=cores: cores)
        scores.append(evaluation.evaluate(Classification(), model, weights, shard))
    assert scores.count(scores[0]) == 4 and torch.get_num_threads() == 1


def test_scores_are_those_of_one_pass_over_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, shard = sample("mlp")
    monkeypatch.setattr(evaluation, "cores", lambda: 2)
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

"""Linear CKA: what it does not see, what it sees, and that batches do not bias it; entropies and attention maps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from undergrowth.core import InputError
from undergrowth.learning.features import attention_map
from undergrowth.learning.selectors import entropies
from undergrowth.report.analyses.similarity import cka, hsic

GENERATOR = torch.Generator().manual_seed(3)
A = torch.randn(600, 20, generator=GENERATOR) * torch.linspace(0.2, 3, 20)
NEAR = A + 1.5 * torch.randn(600, 20, generator=GENERATOR)
UNRELATED = torch.randn(600, 7, generator=GENERATOR)


def similarity(*features: Tensor, batch: int = 600) -> Tensor:
    total = torch.zeros(len(features), len(features), dtype=torch.float64)
    for some in zip(*(each.split(batch) for each in features), strict=False):
        total += hsic(some)
    return cka(total)


def test_the_same_features_have_similarity_one() -> None:
    assert similarity(A, A)[0, 1].item() == pytest.approx(1, abs=1e-12)


def test_rotation_scale_and_shift_change_nothing() -> None:
    rotation, _ = torch.linalg.qr(torch.randn(20, 20, generator=GENERATOR))
    found = similarity(A, A @ rotation, 7.5 * A, A + 100)
    assert torch.allclose(found, torch.ones(4, 4, dtype=found.dtype), atol=1e-6)
    stretched = A * torch.linspace(0.01, 5, 20)  # not a rotation
    assert similarity(A, stretched)[0, 1] < 0.99


def test_unrelated_features_have_similarity_about_zero_in_batches_of_any_size() -> None:
    """The biased estimate grows towards 1 as batches shrink."""
    for size in (600, 100, 10):
        assert abs(similarity(A, UNRELATED, batch=size)[0, 1].item()) < 0.06


def test_batches_estimate_what_all_samples_give() -> None:
    whole = similarity(A, NEAR)[0, 1].item()
    assert 0.6 < whole < 0.95
    for size in (200, 50, 20):
        assert similarity(A, NEAR, batch=size)[0, 1].item() == pytest.approx(whole, abs=0.03)


def test_the_formula_of_the_unbiased_estimate() -> None:
    x, y = A[:30].double(), NEAR[:30].double()
    count, ones = 30, torch.ones(30, dtype=torch.float64)
    k, other = ((each @ each.T).fill_diagonal_(0) for each in (x, y))
    crossed = (ones @ k @ ones) * (ones @ other @ ones) / ((count - 1) * (count - 2))
    total = (k @ other).trace() + crossed - 2 / (count - 2) * (ones @ k @ other @ ones)
    assert hsic([x, y])[0, 1].item() == pytest.approx(float(total) / (count * (count - 3)), rel=1e-9)


def test_features_that_say_nothing_have_no_similarity() -> None:
    assert similarity(A, torch.ones(600, 4))[0, 1].isnan()


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(InputError, match="at least 4"):
        hsic([A[:3], A[:3]])


def test_entropy_of_even_certain_and_hardened_predictions() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [900.0, 0.0, 0.0, 0.0], [2.0, 1.0, 0.0, -1.0]])
    even, certain, between = entropies(logits).tolist()
    assert even == pytest.approx(math.log(4)) and certain == 0
    p = [math.exp(z) / sum(math.exp(each) for each in (2, 1, 0, -1)) for z in (2, 1, 0, -1)]
    assert between == pytest.approx(-sum(each * math.log(each) for each in p), rel=1e-6)
    assert entropies(logits, 0.5)[2].item() == pytest.approx(entropies(2 * logits)[2].item())
    assert entropies(logits, 0.1)[2] < 0.01 < between


def test_an_attention_map_adds_the_squares_of_all_channels() -> None:
    features = torch.tensor([[[[1.0, -2.0]], [[3.0, 0.0]], [[0.0, 0.5]]]])  # one sample, 3 channels, 1 × 2
    assert attention_map(features).tolist() == [[[10.0, 4.25]]]

"""Channels that a slice keeps: of tied weights, of weights that a layer computes, and of frozen statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import Model
from undergrowth.core.binding import freeze_buffers
from undergrowth.learning import widths_of
from undergrowth.learning.pruning import prune, pruned_module


class Tied(nn.Module):
    """Two layers with one weight, and one whose weight is computed, before layers that are sliced."""

    def __init__(self, pools: bool) -> None:
        super().__init__()
        self.pools = pools
        self.first, self.second, self.third = nn.Linear(7, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.third.weight = self.second.weight
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 6))
        self.last, self.head = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.third(functional.relu(self.second(functional.relu(self.first(x)))))
        if self.pools:
            x = functional.max_pool1d(x[:, None], 1)[:, 0]  # only torch-pruning understands it
        return self.head(functional.relu(self.last(self.normed(x))))


class Words(nn.Module):
    """The embeddings of words are the weights of the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.last = nn.Embedding(20, 10), nn.Linear(10, 12), nn.Linear(12, 10)
        self.head = nn.Linear(10, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(functional.relu(self.hidden(self.embedding(x).mean(1)))))


class Pooled(nn.Module):
    """Convolutions, the first of them with frozen statistics, and a function that only torch-pruning understands."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3)
        self.head = nn.Linear(6, 3)
        freeze_buffers(self.norm)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        return self.head(self.second(x).mean((2, 3)))


@pytest.mark.parametrize("build", [lambda: Tied(False), lambda: Tied(True), Words])
def test_channels_of_tied_and_computed_weights_are_not_sliced(build) -> None:
    pytest.importorskip("torch_pruning")
    generator = torch.Generator().manual_seed(2)
    is_words = build is Words
    x = torch.randint(20, (5, 4), generator=generator) if is_words else torch.randn(5, 7, generator=generator)
    model = Model(build).with_example(x)
    widths, weights = widths_of(model), model.initial(1)
    sliced = (
        {"hidden.weight", "hidden.bias", "last.weight"} if is_words else {"last.weight", "last.bias", "head.weight"}
    )
    assert set(widths.axes) == sliced
    cut = widths.cut(weights, 0.5)
    torch.testing.assert_close(model(cut, x), model(widths.spread(cut, 0.5)[0], x))
    pruned = prune(model, weights, 0.3)
    torch.testing.assert_close(pruned_module(model, pruned)(x), model(pruned, x))


def test_channels_of_frozen_statistics_are_not_sliced_in_a_model_that_only_torch_pruning_understands() -> None:
    pytest.importorskip("torch_pruning")
    model = Model(Pooled).with_example(torch.ones(2, 1, 8, 8))
    cut = widths_of(model).cut(model.initial(0), 0.5)
    shapes = {name: tuple(value.shape) for name, value in cut.items() if name.endswith(".weight")}
    assert shapes == {
        "first.weight": (8, 1, 3, 3), "norm.weight": (8,), "second.weight": (3, 8, 3, 3), "head.weight": (3, 3)
    }  # fmt: skip

"""A model of the user that does not fit the data, or that fails, is refused before anything starts."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from undergrowth.core import InputError
from undergrowth.runs import model_builder

from .objects import dataset


def refused(run: Any, out: str, model: Any) -> str:
    with pytest.raises(InputError) as caught:
        run(data=dataset(), model=model)
    sentence = str(caught.value)
    assert "\n" not in sentence and not Path(out).exists()
    return sentence


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Whole(nn.Linear):
    def forward(self, x):
        return super().forward(x).long()


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


class OneRow(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean(0, keepdim=True)


class Scalar(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()


class Misspelt(nn.Linear):
    def forward(self, x):
        return self.wieght * x


class Asserting(nn.Linear):
    def forward(self, x):
        assert x.ndim == 4
        return super().forward(x)


class Leaving(nn.Linear):
    def forward(self, x):
        raise SystemExit(7)


class Silent(nn.Linear):
    def forward(self, x):
        raise ValueError


class Renamed(nn.Linear):
    def state_dict(self, *arguments, **options):
        return {f"net.{name}": value for name, value in super().state_dict(*arguments, **options).items()}


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)
        self.lock = threading.Lock()


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        return torch.jit.script(nn.Linear(6, 3))


NET = nn.Linear(6, 3)


class WithLadder(nn.Linear):
    ladder = ("small", "large")

    def __init__(self):
        super().__init__(6, 3)


MODELS = [
    (lambda: Scalar(6, 3), "model: its output for 3 samples has no rows; it must have one for each sample"),
    (lambda: Misspelt(6, 3), "model: it cannot take an input of shape (6,): AttributeError: 'Misspelt' object has no"),
    (lambda: Asserting(6, 3), "model: it cannot take an input of shape (6,): AssertionError"),
    (lambda: Leaving(6, 3), "model: it cannot take an input of shape (6,): SystemExit: 7"),
    (lambda: Silent(6, 3), "model: it cannot take an input of shape (6,): ValueError"),
    (WithLadder, "model: its attribute 'ladder' is ('small', 'large'); it must be a dictionary"),
    (lambda: nn.Linear(6, 2), "model: its output for one sample has shape (2,); the data needs (3,)"),
    (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3))),
        "model: its output for one sample has shape (2, 3)",
    ),
    (lambda: nn.Linear(5, 3), "model: it cannot take an input of shape (6,)"),
    (lambda: nn.Conv2d(1, 3, 3), "model: it cannot take an input of shape (6,)"),
    (lambda: Pair(6, 3), "model: its output is a tuple; it must be a tensor"),
    (lambda: Whole(6, 3), "model: its output holds int64; it must hold floats"),
    (lambda: Detached(6, 3), "model: its output has no gradient; do not detach it from the parameters"),
    (lambda: OneRow(6, 3), "model: its output for 3 samples has 1 rows; it must have one for each sample"),
    (lambda: nn.Linear(6, 3, dtype=torch.complex64), "model: 'weight' holds complex numbers; a model must hold floats"),
    (lambda: 3, "model: the callable returned a int; it must return an nn.Module"),
    (nn.Identity, "model: it has no parameters; there is nothing to train"),
    (lambda: nn.LazyLinear(3), "model: 'weight' has no shape yet; give its layer the size of its input"),
    (
        lambda: nn.Linear(6, 3).requires_grad_(False),
        "model: none of its 2 parameters requires a gradient; there is nothing",
    ),
    (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)), "model: it changes its input in place"),
    (lambda: nn.Linear(6, 3, device="meta"), "model: 'weight' has no values, because it is on the device meta"),
    (Locked, "model: a copy of it is needed, and it holds something that cannot be copied: TypeError: cannot pickle"),
    (lambda: Renamed(6, 3), "model: its state_dict has no 'bias'"),
    (scripted, "model: it is compiled by torch.jit"),
    (lambda: NET, "model: the callable returned the same nn.Module twice"),
    (nn.Linear, "model: the callable failed"),
    (nn.Linear(6, 3), "model: this is an nn.Module; give a callable"),
]


@pytest.mark.parametrize(("model", "words"), MODELS, ids=range(len(MODELS)))
def test_a_model_that_does_not_fit_the_data_is_refused(run, out, model, words):
    assert words in refused(run, out, model)


def test_a_named_model_that_does_not_fit_into_memory_is_refused(run, out, monkeypatch):
    def refuse(*_: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(model_builder.Model, "__post_init__", refuse)
    assert "model logistic: its weights do not fit into the memory" in refused(run, out, "logistic")

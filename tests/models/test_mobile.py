"""Networks for phones: stacked training, slices by width, and that they learn."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import undergrowth as ug
from undergrowth.core import Model
from undergrowth.learning import widths_of
from undergrowth.models import builder

BOTH = pytest.mark.parametrize("name", ["mobilenetv3-small", "efficientnet-b0"])


@cache
def digits(samples: int) -> ug.data.Dataset:
    """Digits of 24×24 pixels, so that the last map has two pixels per side."""
    small = ug.data.load("digits", train_samples=samples, test_samples=20)
    x, test_x = (np.asarray(each).repeat(3, axis=2).repeat(3, axis=3) for each in (small.x, small.test_x))
    return ug.data.Dataset("digits-24", x, small.y, test_x, small.test_y, 10)


def run(out: Path, name: str, method: str = "fedavg", samples: int = 32, **settings: Any) -> ug.Result:
    given = {"rounds": 1, "batch": 16, "partition": "iid", "clients": 2, "lr": 0.05, **settings}
    return ug.run(method, digits(samples), model=name, out=str(out), **given)


HALF = {"ratios": [0.5]}


@pytest.mark.parametrize(
    ("name", "method", "options"),
    [("mobilenetv3-small", "fedavg", {}), pytest.param("efficientnet-b0", "heterofl", HALF, marks=pytest.mark.slow)],
)
def test_a_stack_trains_like_single_devices(name: str, method: str, options: dict[str, Any], tmp_path: Path) -> None:
    alone = run(tmp_path, name, method, options=options)
    together = run(tmp_path, name, method, options=options, engine="vector")
    assert together.history[0]["stacked"] == 2
    start = Model(builder(name, (1, 24, 24), 10)).initial(0)
    one, other = (dict(result.model.state_dict()) for result in (alone, together))
    change = torch.cat([(one[key] - start[key]).double().flatten() for key in start])
    difference = torch.cat([(one[key] - other[key]).double().flatten() for key in start])
    assert difference.norm() < 0.01 * change.norm()


@BOTH
def test_half_the_width_is_a_quarter_of_the_weights(name: str) -> None:
    model = Model(builder(name, (3, 32, 32), 10))
    widths = widths_of(model)
    cut = widths.cut(model.initial(0), 0.5)
    channels = cut["group3.1.layers.3.weight"].shape
    assert channels[1] == 1, "a depthwise convolution, as in the whole model"
    assert cut["group3.1.layers.6.factors.3.weight"].shape[0] == channels[0], "one factor per channel"
    assert widths.fraction(0.5) == pytest.approx(0.26, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("mobilenetv3-small", 20), ("efficientnet-b0", 9)])
def test_it_learns(name: str, steps: int) -> None:
    torch.manual_seed(0)
    module = builder(name, (1, 24, 24), 10)()
    optimiser = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    shard = digits(32).shard(np.arange(16))
    losses = []
    for _ in range(steps):
        loss = functional.cross_entropy(module(shard.x), shard.y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]

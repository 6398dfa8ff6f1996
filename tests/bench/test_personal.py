"""`bench personal` trains, adapts and evaluates all devices, and measures a loop beside it."""

from __future__ import annotations

import pytest

from undergrowth.bench import Measurement
from undergrowth.bench.personal import measure, synthetic_writers
from undergrowth.core import InputError


def test_both_sides_are_measured() -> None:
    lines = list(measure("logistic", devices=4))
    speed, memory = (line for line in lines if isinstance(line, Measurement))
    assert speed.ours > 0 and speed.reference > 0 and speed.bar == 1.0
    assert memory.lower_is_better and memory.met


def test_writers_have_their_own_samples() -> None:
    data = synthetic_writers(5)
    data.check()
    assert len(set(data.fields["writer"].tolist())) == 5 and len(data) >= 5 * 60


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(InputError, match="--workload 'cnm' is not known; did you mean 'cnn'"):
        list(measure("cnm"))

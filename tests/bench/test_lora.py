"""`bench lora`: both sides train the same adapters on the same texts."""

from __future__ import annotations

import pytest

from undergrowth.bench import lora
from undergrowth.core import RunError

TINY = lora.Size(words=20, width=8, layers=1, heads=2, tokens=5, rank=2, clients=3, batch=2, batches=2)


def test_both_sides_train_the_same_adapters() -> None:
    ours, loop = lora.compare(TINY, "cpu", warm=1, rounds=2)
    assert len(ours) == len(loop) == 2 and all(each.seconds > 0 for each in (*ours, *loop))


def test_a_loop_that_trains_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "LR", 5.0)  # of the loop and the task alike
    lora.compare(TINY, "cpu", warm=0, rounds=1)
    plain = lora._order
    monkeypatch.setattr(lora, "_order", lambda client, number, samples: plain("another", number, samples))
    with pytest.raises(RunError, match="the adapters differ from the loop's"):
        lora.compare(TINY, "cpu", warm=0, rounds=1)

"""`evaluate_every: auto` is computed from counted FLOPs."""

from __future__ import annotations

import pytest

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.runs.evaluation_interval import interval


@pytest.mark.parametrize(
    ("training", "evaluation", "every"),
    [(100.0, 25.0, 1), (100.0, 26.0, 2), (100.0, 100.0, 4), (1.0, 1e9, 50), (0.0, 1.0, 50), (1.0, 0.0, 1)],
)
def test_evaluation_is_at_most_a_fifth(training: float, evaluation: float, every: int) -> None:
    assert interval(training, evaluation, rounds=50) == every
    if 1 < every < 50:
        assert evaluation / (evaluation + every * training) <= 0.2
        assert evaluation / (evaluation + (every - 1) * training) > 0.2


def test_a_run_says_its_interval_and_learns_the_same(tmp_path) -> None:
    # 3 of 20 devices train on about 72 samples each, in two passes; 359 samples are tested.
    settings = {"model": "logistic", "partition": "iid", "sample": 0.15, "rounds": 9, "out": tmp_path}
    chosen, always = ug.run(evaluate_every="auto", **settings), ug.run(**settings)
    (note,) = [note for note in chosen.notes if note.startswith("evaluate_every auto")]
    every = int(note.split()[3])
    assert 1 < every < 9 and "FLOPs an evaluation" in note
    assert chosen.summary["model_digest"] == always.summary["model_digest"]
    evaluated = [number % every == 0 or number in (1, 9) for number in range(1, 10)]
    for rare, often, known in zip(chosen.history, always.history, evaluated, strict=True):
        assert not known or rare["accuracy"] == often["accuracy"]
    assert len({row["loss"] for row in chosen.history}) == sum(evaluated)


@pytest.mark.parametrize("wrong", ["often", 0, 1.5, True])
def test_other_values_are_refused(wrong: object, tmp_path) -> None:
    with pytest.raises(InputError, match=r"run.evaluate_every .* should be a whole number of at least 1, or auto"):
        ug.run(evaluate_every=wrong, out=tmp_path)

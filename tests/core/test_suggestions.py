"""Suggestions: other spellings, other words of the same meaning, slips, and otherwise all names."""

from __future__ import annotations

import pytest

from undergrowth.core import suggest
from undergrowth.core.errors import MEANINGS


@pytest.mark.parametrize(
    ("value", "choices", "end"),
    [
        ("MNIST", ("mnist", "fashion-mnist"), "did you mean 'mnist'?"),
        ("Fashion_MNIST", ("mnist", "fashion-mnist"), "did you mean 'fashion-mnist'?"),
        ("learning_rate", ("batch", "lr", "rounds"), "did you mean 'lr'?"),
        ("learning_rate", ("batch", "rounds"), "choose one of: batch, rounds"),
        ("non-iid", ("dirichlet", "iid", "natural"), "did you mean 'dirichlet:0.1'?"),
        ("random", ("all", "random"), "did you mean 'random'?"),
        ("FedAvgg", ("fedavg", "fedprox"), "did you mean 'fedavg'?"),
    ],
)
def test_suggestions(value: str, choices: tuple[str, ...], end: str) -> None:
    assert suggest(value, choices) == end


def test_every_meaning_is_a_key_or_a_partition() -> None:
    from undergrowth.data import parse_rule
    from undergrowth.runs.config import Experiment, experiment_keys

    keys = {path.rpartition(".")[2] for path in experiment_keys()} | set(Experiment.model_fields)
    for word, meaning in MEANINGS.items():
        assert word == word.lower() and not set("-_ ") & set(word)
        assert meaning in keys or parse_rule(meaning)

"""The sentence about a wrong setting names a place that a user can write, and all that would be right there."""

from __future__ import annotations

from typing import Any

import pytest

from undergrowth.core import InputError
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.method_builder import build_method


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"fleet": {"server_link": True}}, "fleet.server_link True should be a text, a section or a list"),
        ({"fleet": {"server_link": [True]}}, "fleet.server_link.0 True should be a text or a section"),
        ({"fleet": {"server_link": {1: 2}}}, "fleet.server_link: the key 1 must be a word"),
        ({"fleet": {"server_device": 3}}, "fleet.server_device 3 should be a text or a section"),
        ({"task": {"metrics": {3: "a:b"}}}, "task.metrics: the key 3 must be a word"),
        ({"task": {"metrics": {"str": 3}}}, "task.metrics.str 3 should be a valid string"),
        ({"public": {"missing": 3}}, "public.missing 3 should be a list, such as [3]"),
        ({"model": {"ladder": "mlp"}}, "model.ladder 'mlp' should be a list, such as [mlp]"),
        ({"model": {"ladder": 3}}, "model.ladder 3 should be a list"),
        ({"model": {"lora": {"layers": 3}}}, "model.lora.layers 3 should be a list"),
        ({"run": {"seed": 2**63}}, "run.seed 9223372036854775808 should be less than 9223372036854775808"),
        (
            {"model": {"lora": {"rank": 8, "dropout": 1}}},
            "model.lora.dropout is not a known key; choose one of: alpha, layers, rank",
        ),
        ({"train": {"dropout": 1}}, "train.dropout is not a known key; did you mean 'fleet.dropout'?"),
    ],
)
def test_a_setting(raw: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment(raw)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("bhfl", {"up": 3}, "method.up 3 should be a text or a list"),
        ("bhfl", {"up": [3]}, "method.up.0 3 should be a valid string"),
        ("bhfl", {"execution": True}, "method.execution True should be a text or a list"),
        ("bhfl", {"leaf": {3: 4}}, "method.leaf: the key 3 must be a word"),
        ("bhfl", {"eta_up": "0,5"}, "method.eta_up '0,5' has a decimal comma; write 0.5"),
        ("bhfl", {"eta_up": True}, "method.eta_up True should be a number, not true or false"),
        ("pafl", {"term": 3}, "method.term 3 should be a text or a function"),
        ("hierfavg", {"rounds_per_level": "x"}, "method.rounds_per_level 'x' should be a whole number or a list"),
        ("heterofl", {"ratios": 0.5}, "method.ratios 0.5 should be a list, such as [0.5]"),
    ],
)
def test_an_option_of_a_method(method: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        build_method(method, options)
    assert str(caught.value) == sentence

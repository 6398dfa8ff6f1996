"""Values of YAML texts, as experiment, fleet and topology files and `-s` are read."""

from __future__ import annotations

from math import inf

import pytest
import yaml

from undergrowth.devices.plain_yaml import load_yaml


@pytest.mark.parametrize("text", ["2020-01-01", "2020-01-01 10:00:00", "2020-01-01T00:00:00Z"])
def test_a_date_stays_the_text_that_was_written(text: str) -> None:
    assert load_yaml(f"seed: {text}") == {"seed": text}
    assert load_yaml(f"!!timestamp {text}") == text


@pytest.mark.parametrize("text", ["1:30", "12:30:45", "-1:00", "1:30.5", "190:20:30"])
def test_a_time_stays_the_text_that_was_written(text: str) -> None:
    """YAML 1.1 reads 1:30 as the number 90."""
    assert load_yaml(f"deadline: {text}") == {"deadline": text}
    assert load_yaml(f"{text}: deadline") == {text: "deadline"}
    assert load_yaml(f"[{text}, 2]") == [text, 2]


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("-1_000", -1000), ("0x1f", 31), ("1.5", 1.5), ("-.inf", -inf)]
)
def test_other_numbers_are_numbers(text: str, value: float) -> None:
    found = load_yaml(f"lr: {text}")["lr"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("text", ["!!int abc", "!!int ''", "!!int 0x", "!!float abc", "!!bool maybe"])
def test_a_value_that_does_not_fit_its_tag_is_not_yaml(text: str) -> None:
    with pytest.raises(yaml.MarkedYAMLError, match="does not fit its tag !!") as caught:
        load_yaml(f"lr: 0.1\nseed: {text}")
    assert caught.value.problem_mark.line == 1

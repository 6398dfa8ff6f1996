"""Values of YAML texts, as experiment, fleet and topology files and `-s` are read."""

from __future__ import annotations

import pytest

from undergrowth.devices.plain_yaml import load_yaml


@pytest.mark.parametrize("text", ["2020-01-01", "2020-01-01 10:00:00", "2020-01-01T00:00:00Z"])
def test_a_date_stays_the_text_that_was_written(text: str) -> None:
    assert load_yaml(f"seed: {text}") == {"seed": text}
    assert load_yaml(f"!!timestamp {text}") == text

"""Times such as 1:30, which YAML 1.1 reads as the number 90, are refused by the setting that they were given for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        (("run", "file.yaml"), "fleet: {deadline: 1:30}", "fleet.deadline '1:30'"),
        (("sweep", "file.yaml"), "train: {rounds: [1:30, 2]}", "train.rounds '1:30'"),
        (("run", "--fleet", "file.yaml"), "devices: [{profile: uniform, share: 1:30}]", "share is '1:30'"),
        (("run", "--topology", "file.yaml"), "nodes: {a: {devices: 1:30}}", "devices is '1:30'"),
        (("run", "-s", "data.clients=12:30:45"), "", "data.clients '12:30:45'"),
    ],
    ids=["experiment", "sweep", "fleet", "topology", "setting"],
)
def test_a_time_is_not_a_number(type_command, command: tuple[str, ...], text: str, said: str) -> None:
    Path("file.yaml").write_text(text, encoding="utf-8")
    done = type_command(*command)
    assert done.exit_code == 2 and said in " ".join(done.stderr.split()), done.stderr

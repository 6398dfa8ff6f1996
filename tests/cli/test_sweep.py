"""`undergrowth sweep`: its table, its page, its JSON and its exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import last_json
from tests.executed_runs import fail_runs
from undergrowth.cli.run_summary import JSON_KEYS

TEXT = """
method: [fedavg, fedbuff]
data: {clients: 3, train_samples: 60, test_samples: 50}
model: logistic
fleet: {name: mixed-edge, deadline: 30}
stop: {rounds: 2, accuracy: 0.99}
run: {seed: [0, 1], engine: serial}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "both.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_sweep_ends_with_a_table_and_a_page(type_command: Callable[..., Any], file: Path) -> None:
    done = type_command("sweep", file, "--accuracy", 0.01, "--latex", "table.tex")
    assert done.exit_code == 0, done.output
    words = [line.split() for line in done.stdout.splitlines()]
    (header,) = [line for line in words if line[:3] == ["variant", "seeds", "accuracy"]]
    assert header == ["variant", "seeds", "accuracy", "difference", "agree", "rounds", "time", "sent", "energy"]
    assert [line[:2] for line in words if line[:1] in (["fedavg"], ["fedbuff"])][:2] == [
        ["fedavg", "2"],
        ["fedbuff", "2"],
    ]
    assert "To reach an accuracy of 0.0100" in done.stdout and "2 of 2" in done.stdout
    assert "ended by rounds: 4 of 4 runs" in done.stdout
    assert "note: fedbuff does not use fleet.deadline 30.0; it has no effect" in done.stdout
    assert Path("runs/both.html").exists() and "fedbuff & 2 & " in Path("table.tex").read_text(encoding="utf-8")
    assert "4 of 4 runs: fedbuff, seed 1" in done.stderr

    again = type_command("sweep", file, "--json")
    rows = last_json(again.stdout)
    assert [tuple(row) for row in rows] == [JSON_KEYS] * 4 and len(list(Path("runs").glob("*-fed*"))) == 4
    assert [(row["method"], row["seed"], row["rounds"]) for row in rows] == [
        ("fedavg", 0, 2), ("fedavg", 1, 2), ("fedbuff", 0, 2), ("fedbuff", 1, 2),
    ]  # fmt: skip


def test_settings_of_the_command_line_may_be_choices(type_command: Callable[..., Any], file: Path) -> None:
    words = ("-s", "run.seed=[5]", "-s", "train.lr=[0.1, 0.2]", "-s", "method=fedavg", "--out", "there", "--no-report")
    done = type_command("sweep", file, *words)
    assert done.exit_code == 0 and "lr 0.2" in done.stdout and list(Path("there").glob("*.html")) == []


def test_a_failed_run_is_told_at_the_end(
    type_command: Callable[..., Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_runs(monkeypatch, lambda raw: raw["run"]["seed"] == 1)
    done = type_command("sweep", file, "--no-report", "-s", "method=fedavg")
    assert done.exit_code == 3
    assert "failed: 1 of 2 runs, the first fedavg, seed 1: RuntimeError: no luck" in done.stderr
    assert "failed: fedavg, seed 1: RuntimeError: no luck" in done.stdout


def test_a_wrong_variant_is_refused_before_anything_starts(type_command: Callable[..., Any], file: Path) -> None:
    done = type_command("sweep", file, "-s", "train.batch=[8, 0]")
    assert done.exit_code == 2 and not Path("runs").exists()
    assert done.stderr.startswith(
        "error: variant 'fedavg, batch 0': train.batch 0 should be greater than or equal to 1"
    )
    assert type_command("sweep", "nowhere.yaml").exit_code == 2
    for folder in (".", ""):
        assert f"'{folder}' is a folder; name a file" in type_command("sweep", file, "--latex", folder).stderr
    for value in ("nan", "inf"):
        assert f"metric {value} must be a finite number" in type_command("sweep", file, "--metric", value).stderr
    file.write_text("sweep: [{name: slow}]", encoding="utf-8")
    assert f"`undergrowth sweep {file}` runs them" in type_command("run", file).stderr


def test_compare_shows_what_it_took_to_reach_a_given_accuracy(
    type_command: Callable[..., Any], runs_folder: str
) -> None:
    from undergrowth.runs import Store

    runs = [row["id"] for row in Store(runs_folder).runs()]
    done = type_command("compare", *runs, "--accuracy", 0.01, "--out", runs_folder)
    assert "to reach an accuracy of 0.0100" in done.stdout
    told = last_json(type_command("compare", *runs, "--accuracy", 1.0, "--json", "--out", runs_folder).stdout)
    assert told["accuracy"] == 1.0 and told["to_reach_it"] == [None, None] and told["common_accuracy"] < 1

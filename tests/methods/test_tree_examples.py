"""The shipped example system runs flat, with two levels and with three."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from undergrowth.runs.execution import start
from undergrowth.runs.experiment_file import read

EXAMPLES = Path(__file__).parents[2] / "docs/examples/trees"


@pytest.mark.parametrize(("name", "servers"), [("flat", 1), ("two-levels", 9), ("three-levels", 9)])
def test_the_example_system_runs(name: str, servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    raw = read(f"{name}.yaml")
    raw["train"] |= {"rounds": 1, "epochs": 1}
    result = start({**raw, "run": {"out": str(tmp_path), "engine": "serial"}})
    rows = list(result.ledger.rows())
    assert result.accuracy > 0.2
    assert len({row.parent for row in rows}) == servers
    assert all(row.bytes_down > 0 and row.bytes_up > 0 for row in rows)


@pytest.mark.parametrize(("topology", "depth"), [("star", 0), ("writers-edges.yaml", 1), ("writers-regions.yaml", 2)])
def test_the_example_system_runs_on_writers(
    topology: str, depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With eight images for each of 539 writers, in place of MNIST."""
    writer = np.repeat(np.arange(539), 8)
    x = np.random.default_rng(0).random((len(writer), 1, 4, 4), np.float32)
    y = np.arange(len(writer)) % 10
    np.savez(tmp_path / "writers.npz", x=x, y=y, x_test=x[:20], y_test=y[:20], writer=writer)
    monkeypatch.chdir(EXAMPLES)
    raw = read("writers.yaml")
    raw["data"] |= {"name": "npz", "path": str(tmp_path / "writers.npz"), "holdout": 0.2}
    raw |= {"topology": topology, "model": "logistic", "train": {"rounds": 1, "sample": 0.05}}
    result = start({**raw, "run": {"out": str(tmp_path), "engine": "serial"}})
    assert max(row["depth"] for row in result.tree["nodes"]) == depth
    assert len(result.clients) == 539 and [row["distance"] for row in result.tree["distances"]] == [*range(depth + 2)]

"""A new cost touches four files; everything else takes it from there, and old run folders stay readable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import undergrowth

# A cost of one gram for two joules: file → texts in it, and what is inserted after each.
CHANGES = {
    "exchange/ledger.py": {
        "    memory: int = 0\n    joules: float = 0.0\n": "    grams: float = 0.0\n",
        '    Cost("joules", "joules", "joules"),\n': '    Cost("grams", "grams", "grams"),\n',
        "    compute_seconds: float = 0.0\n": "    grams: float = 0.0\n",
        "            joules += entry.joules\n": "            self.grams += entry.grams\n",
    },
    "devices/price.py": {
        "    fits: bool  # in the memory of the device, beside its runtime\n": "    grams: float = 0.0\n",
        "        profile.runtime + work.memory <= profile.memory,\n": (
            "        (profile.compute_watts * computing + profile.radio_watts * (receiving + sending)) / 2,\n"
        ),
    },
    "simulation/clock.py": {
        "    received: float = 1.0  # fraction of the download that arrived\n": "    grams: float = 0.0\n",
        "            joules=joules,\n": "            grams=self.grams * done,\n",
        "            joules=self.joules + other.joules,\n": "            grams=self.grams + other.grams,\n",
        "Timing(*cost[:3], work.flops, work.memory, cost.joules": ", grams=cost.grams",
    },
    "report/tables.py": {
        '    ("joules", "energy of devices", energy),\n': '    ("grams", "mass", partial(amount, unit="g")),\n',
        '    "peak_device_bytes": "memory",\n': '    "grams": "mass",\n',
    },
}
SUM = "import sys, undergrowth as ug; print(sum(row.grams for row in ug.load(*sys.argv[1:]).ledger.rows()))"


@pytest.mark.slow
def test_a_cost_touches_four_files(tmp_path: Path) -> None:
    present, changed, out = Path(undergrowth.__file__).parents[1], tmp_path / "src", str(tmp_path / "runs")
    shutil.copytree(present / "undergrowth", changed / "undergrowth", ignore=shutil.ignore_patterns("__pycache__"))
    for file, insertions in CHANGES.items():
        path = changed / "undergrowth" / file
        text = path.read_text(encoding="utf-8")
        for place, added in insertions.items():
            assert text.count(place) == 1, f"{file}: {place!r}"
            text = text.replace(place, place + added)
        path.write_text(text, encoding="utf-8")

    settings = ("--model", "logistic", "--clients", "4", "--fleet", "mixed-edge")
    old = command(present, "run", *settings, "--rounds", "2", "--out", out, "--json")
    assert "grams" not in old and old["joules"] > 0
    new = command(changed, "run", *settings, "--rounds", "2", "--out", out, "--json")
    assert new["grams"] == pytest.approx(new["joules"] / 2) and new["model_digest"] == old["model_digest"]
    details = command(changed, "show", new["run"], "--out", out, "--devices", "--json")
    for row in (*details["history"], *details["devices"]):
        assert row["grams"] == pytest.approx(row["joules"] / 2) and row["grams"] > 0
    assert float(python(changed, "-c", SUM, new["run"], out)) == pytest.approx(new["grams"])
    assert "mass" in command(changed, "show", new["run"], "--out", out)
    assert "mass" in command(changed, "show", new["run"], "--out", out, "--devices")
    assert "mass" in command(changed, "plan", "--method", "fedavg", *settings)

    assert float(python(changed, "-c", SUM, old["run"], out)) == 0, "a run from before the cost can be read"
    assert "mass" in command(changed, "show", old["run"], "--out", out, "--devices")
    assert command(present, "show", new["run"], "--out", out, "--json")["joules"] == new["joules"]


def command(source: Path, *words: str) -> Any:
    """What a command of the package in `source` prints, as JSON if it is JSON."""
    printed = python(source, "-m", "undergrowth", *words)
    return json.loads(printed) if "--json" in words else printed


def python(source: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""The runs of an output folder, one row per run."""

from __future__ import annotations

from contextlib import closing
from os import PathLike
from typing import Any

from undergrowth.runs.result import main_metric
from undergrowth.runs.store import Store

RUN_FACTS = ("method", "data", "model", "seed", "rounds", "clients", "engine")
_TOTALS = ("accuracy", "loss", "bytes_down", "bytes_up", "simulated_seconds")


def list_runs(out: str | PathLike[str] = "runs") -> list[dict[str, Any]]:
    """The runs in the folder `out`, the oldest first: id, status, method, its options, data, accuracy, costs.

    `metric` names the main metric of the run's task; its value is under that name.

    These are the rows that `undergrowth list --json` prints. An unfinished run has the figures of its last round.
    """
    rows = []
    with closing(Store(out)) as store:
        for row in store.runs():
            # A finished run has its totals in the summary; for the others the last round is read.
            method = row["experiment"]["settings"]["method"]
            totals: dict[str, Any] = row["summary"] or store.last_round(row["id"])
            rows.append({
                "run": row["id"], "created": row["created"], "status": row["status"],
                **{key: row[key] for key in RUN_FACTS},
                "options": {key: value for key, value in method.items() if key != "name"},
                "rounds_done": row["summary"].get("rounds") or totals.get("round", 0),
                "metric": (metric := main_metric(row).name),
                metric: (totals.get("metrics") or totals).get(metric),
                **{key: totals.get(key) for key in _TOTALS},
            })  # fmt: skip
    return rows

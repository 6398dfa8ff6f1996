"""The runs of an output folder, one row per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from undergrowth.core import InputError, RunError, describe_error
from undergrowth.runs.result import main_metric
from undergrowth.runs.store import Store

UNREADABLE = "unreadable"
RUN_FACTS = ("method", "data", "model", "seed", "rounds", "clients", "engine")
_TOTALS = ("accuracy", "loss", "bytes_down", "bytes_up", "simulated_seconds")


def list_runs(out: str | PathLike[str] = "runs") -> list[dict[str, Any]]:
    """The runs in the folder `out`, the oldest first: id, status, method, its options, data, accuracy, costs.

    `metric` names the main metric of the run's task; its value is under that name. `sweep` and `variant` name the sweep
    that the run belongs to. A run that cannot be read has the status `unreadable` and the reason under `problem`.

    These are the rows that `undergrowth list --json` prints. An unfinished run has the figures of its last round.
    """
    with Store(out) as store:
        sweeps = store.sweeps()
        rows = []
        for run in store.ids():
            sweep, variant = sweeps.get(run, (None, None))
            rows.append({**_row(store, run), "sweep": sweep, "variant": variant})
        return rows


def _row(store: Store, run: str) -> dict[str, Any]:
    row, totals, problem = store.columns(run), dict[str, Any](), None
    options: dict[str, Any] = {}
    metric = rounds_done = None
    try:
        row = store.run(run)
        # A finished run has its totals in the summary; for the others the last round is read.
        totals = row["summary"] or store.last_round(run)
        options = {key: value for key, value in row["experiment"]["settings"]["method"].items() if key != "name"}
        rounds_done = row["summary"].get("rounds") or totals.get("round", 0)
        metric = main_metric(row).name
    except (InputError, RunError) as error:
        problem = str(error)
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # values of a damaged row
        problem = f"its row in the store is damaged ({describe_error(error)})"
    if problem is not None:
        row["status"], totals, options, metric, rounds_done = UNREADABLE, {}, {}, None, None
    return {
        "run": run, "created": row["created"], "status": row["status"], "problem": problem,
        **{key: row[key] for key in RUN_FACTS},
        "options": options,
        "rounds_done": rounds_done,
        "metric": metric,
        **({} if metric is None else {metric: (totals.get("metrics") or totals).get(metric)}),
        **{key: totals.get(key) for key in _TOTALS},
    }  # fmt: skip


def shared_title(rows: Sequence[Mapping[str, Any]]) -> str:
    """The title of the column with the main metric of listed runs: its name, or `metric` if they have several."""
    names = {row["metric"] for row in rows if row["metric"]}
    return str(names.pop()) if len(names) == 1 else "metric"

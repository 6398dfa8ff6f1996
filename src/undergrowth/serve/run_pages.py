"""Pages about one or several runs: what `undergrowth report` writes, with the parts that change with every round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from undergrowth.report.html import escape
from undergrowth.report.run_page import build_page, build_summary
from undergrowth.report.run_record import RunRecord, load_records
from undergrowth.runs import Store
from undergrowth.serve.run_state import DONE, RunState, progress_markup, version
from undergrowth.serve.template import render


def run_page(folder: Path, states: Sequence[RunState], live_address: str) -> str:
    """The page about the runs of `states`. Until all are done, the page asks `live_address` what is new."""
    with Store(folder) as store:
        page = build_page(_records(store, states, activity=True))
    live = any(state.status != DONE for state in states)
    data = {"live": live_address, "version": version(states), "statuses": _statuses(states)} if live else {}
    attributes = "".join(f' data-{name}="{escape(value)}"' for name, value in data.items())
    bar = f'<a href="/">← all runs</a><span id="progress">{progress_markup(states)}</span>'
    main = f'<nav class="bar">{bar}</nav>\n{page.body}\n'
    figures = f'<script type="text/plain" id="figures">{page.packed_figures}</script>'
    scripts = ("plotly.js", "page.js", "live.js") if live else ("plotly.js", "page.js")
    return render(page.title, main, scripts, attributes=attributes, data=figures)


def live_answer(folder: Path, states: Sequence[RunState]) -> str:
    """What is new about the runs of `states`, as JSON for `live.js`."""
    with Store(folder) as store:
        page = build_summary(_records(store, states))
    answer = {
        "version": version(states),
        "statuses": _statuses(states),
        "progress": progress_markup(states),
        "summary": page.body,
        "figures": page.drawings,
    }
    return json.dumps(answer, allow_nan=False)


def _records(store: Store, states: Sequence[RunState], activity: bool = False) -> list[RunRecord]:
    """The runs; if all of them belong to one sweep, with the names of their variants."""
    runs, sweeps = [state.run for state in states], store.sweeps()
    names = {sweeps[run][0] if run in sweeps else None for run in runs}
    variants = None if len(runs) == 1 or len(names) > 1 or None in names else {run: sweeps[run][1] for run in runs}
    return load_records(store, runs, activity, variants)


def _statuses(states: Sequence[RunState]) -> str:
    return " ".join(state.status for state in states)

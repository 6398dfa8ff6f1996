"""Pages about one or several runs: what `undergrowth report` writes, with the parts that change with every round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from undergrowth.report.html import escape
from undergrowth.report.run_page import build_page, build_summary
from undergrowth.report.run_record import load_records
from undergrowth.runs import Store
from undergrowth.serve.run_state import DONE, RunState, progress_markup, version
from undergrowth.serve.template import render


def run_page(folder: Path, states: Sequence[RunState], live_address: str) -> str:
    """The page about the runs of `states`. Until all are done, the page asks `live_address` what is new."""
    with closing(Store(folder)) as store:
        page = build_page(load_records(store, [state.run for state in states], activity=True))
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
    with closing(Store(folder)) as store:
        page = build_summary(load_records(store, [state.run for state in states]))
    answer = {
        "version": version(states),
        "statuses": _statuses(states),
        "progress": progress_markup(states),
        "summary": page.body,
        "figures": page.drawings,
    }
    return json.dumps(answer, allow_nan=False)


def _statuses(states: Sequence[RunState]) -> str:
    return " ".join(state.status for state in states)

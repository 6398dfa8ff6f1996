"""A plan as Python users get it: the rows, advice in sentences, a table for pandas, and a page."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from undergrowth.core import InputError, Method, RunWarning
from undergrowth.data import Dataset, Population
from undergrowth.engines import restore_torch_settings
from undergrowth.report.plan_advice import advise
from undergrowth.report.plan_page import write_plan_page
from undergrowth.report.plan_tree import advise_tree
from undergrowth.runs.advice import best_method, find_next_class
from undergrowth.runs.api import check_kind, parse_arguments
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.own_task import TaskFunctions
from undergrowth.runs.planning import TREE, Planner, Row


class PlanReport(list[Row]):
    """The rows of a plan, one per method and class of devices, and what follows from them.

    notes: assumptions of the prices, and why methods are left out.
    advice: sentences: who can take part, the energy of the run, how long batteries last, and what to change.
    tree: for a tree, one row per method and level of servers: what their links carry, and the time of a round. The rows
        of the devices have those of their method under `tree`, too, so that JSON has them.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        planned: Experiment,
        notes: Sequence[str],
        advice: Sequence[str],
        tree: Sequence[Row] = (),
    ) -> None:
        super().__init__(rows)
        self.planned, self.notes, self.advice, self.tree = planned, list(notes), list(advice), list(tree)

    @property
    def rows(self) -> list[Row]:
        """The rows as a plain list of dictionaries."""
        return list(self)

    def to_pandas(self, tree: bool = False) -> Any:
        """The rows without their entry `tree`, or the rows of `tree`, as a pandas DataFrame."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise InputError("to_pandas needs pandas; install it with `pip install pandas`") from None
        flat = [{key: value for key, value in row.items() if key != TREE} for row in self]
        return pandas.DataFrame(self.tree if tree else flat)

    def page(self, file: str | Path) -> Path:
        """Writes an HTML page with figures, advice and all rows, and returns its path."""
        return write_plan_page(self, file)


@restore_torch_settings()
def plan(method: str | Method | Sequence[str | Method] | None = None, **arguments: Any) -> PlanReport:
    """The price of taking part, without training: one row per method and class of devices.

    Takes the arguments of `run`. `method` may also be a list; without it, all methods are priced. The result is a list
    of rows that also has `advice`, `notes`, `to_pandas()` and `page(FILE)`. Notes are warnings, too.
    """
    several = isinstance(method, Iterable) and not isinstance(method, str)
    methods: list[Any] = list(method) if several else [] if method is None else [method]  # type: ignore[arg-type]
    for each in methods:
        check_kind("method", each)
    named = next((name for name in methods if isinstance(name, str)), "fedavg")
    raw, objects = parse_arguments({"data": "digits", "model": "cnn", **arguments, "method": named})
    found = build_plan(
        parse_experiment(raw), methods, objects["data"], objects["model"], functions=objects["functions"]
    )
    for note in found.notes:
        warnings.warn(note, RunWarning, stacklevel=2)
    return found


def build_plan(
    experiment: Experiment,
    methods: Sequence[str | Method],
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    watch: Callable[[Iterator[Row]], Iterable[Row]] = iter,
    functions: TaskFunctions | None = None,
) -> PlanReport:
    """Prices `methods`, or all that work with the model, and advises. `watch` sees the rows as they are priced."""
    planner = Planner(experiment, data, model, functions)
    rows = list(watch(planner.price_all(methods)))
    # Someone who names methods wants to use the first of them.
    chosen = rows[0]["method"] if methods else best_method(rows)
    advice = advise(rows, experiment, chosen, find_next_class(planner, rows, chosen))
    sentences = [*advice, *advise_tree(planner.tree, chosen)]
    return PlanReport(rows, experiment, planner.notes(), sentences, planner.tree)

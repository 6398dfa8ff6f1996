"""Tables fair-1 to fair-5: the published figures, and the figures about devices in the store of a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from undergrowth.core import RunError
from undergrowth.reproduce import load_tables, reproduce_table
from undergrowth.reproduce.metrics import measure
from undergrowth.reproduce.table_cells import build_cells
from undergrowth.runs import Store

ADAPTED = {"A_FB": "freeze", "A_EWC": "ewc:5000", "A_KD": "kd:6:0.95"}


def test_the_mean_relative_accuracy_is_that_of_the_model_minus_that_of_the_local_one() -> None:
    """The source computes table 4 on fewer devices than table 1, so there only the first digits agree."""
    tables = load_tables()
    for relative, absolute, error in (("fair-4", "fair-1", 0.03), ("fair-5", "fair-2", 0.002)):
        figures = tables[absolute].figures
        for row in set(tables[relative].rows) & set(tables[absolute].rows):
            expected = figures[row, "Mean, %"].mean - figures["Local", "Mean, %"].mean
            assert tables[relative].figures[row, "Mean, %"].mean == pytest.approx(expected, abs=error), row


@pytest.mark.parametrize("name", ["fair-1", "fair-2", "fair-3", "fair-4", "fair-5"])
def test_published_groups_are_ordered(name: str) -> None:
    """A slip in copying a figure may show here."""
    figures = load_tables()[name].figures
    for row in load_tables()[name].rows:
        worst, mean, best = (figures[row, column].mean for column in ("Worst, %", "Mean, %", "Best, %"))
        assert worst < mean < best
        variances = [figure.mean for (each, column), figure in figures.items() if each == row and "Variance" in column]
        assert len(variances) == 3 and min(variances) >= 0


@pytest.mark.parametrize("scale", ["full", "small"])
def test_rows_name_models_that_their_runs_evaluate(scale: str) -> None:
    for name in ("fair-4", "fair-5"):
        for cell in build_cells(load_tables()[name], scale):
            how = ADAPTED.get(cell.row.partition(", ")[2], "federated")
            assert f" of {how}, " in cell.metric
            assert how == "federated" or how in cell.raw["personal"]["adapt"]


def test_smoke_cells_have_the_figures_of_their_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = reproduce_table("fair-4", only="q = 0|q = 0, A_KD")
    assert not result.failed and not result.left_out
    values = {each.cell.place: each.values[0] for each in result.cells}
    (run,) = {run for each in result.cells for run in each.runs}
    with closing(Store("runs")) as store:
        accuracy: dict[str, dict[str, float]] = {}
        for device, model, value in store.personal(run):
            accuracy.setdefault(model, {})[device] = 100 * value
        assert set(accuracy) == {"local", "federated", *ADAPTED.values()}
        for row, model in (("q = 0", "federated"), ("q = 0, A_KD", "kd:6:0.95")):
            relative = np.array([accuracy[model][device] - accuracy["local"][device] for device in accuracy["local"]])
            expected = {
                "Mean, %": relative.mean(), "Below 0, devices": (relative < 0).sum(), "Best, %": relative.max(),
                "Worst, %": relative.min(), "Variance": relative.var(), "Variance of the best": 0,
            }  # fmt: skip
            for column, value in expected.items():  # of four devices, a tenth is one
                assert values[row, column] == pytest.approx(float(value)), (row, column)
        local = np.array(list(accuracy["local"].values()))
        assert measure(store, run, "accuracy of local, worst mean") == pytest.approx(local.min())
        with pytest.raises(RunError, match="did not evaluate the model 'ditto'"):
            measure(store, run, "accuracy of ditto, mean")

"""Table 7.1: the published traffic of REFT and its baselines follows from the formulas of the source."""

from __future__ import annotations

from typing import Any

import pytest

from undergrowth.models import builder
from undergrowth.reproduce import load_tables
from undergrowth.reproduce.table_cells import build_cells

MIB = 2**20
AGAINST_THE_FORMULA = {  # row → what its published total is divided by what its megabytes give
    "ResNet-8: FL-PQSU": 3.97,
    "VGG-16: FedAvg": 0.80,
    "VGG-16: PruneFL": 0.94,
}


def published(row: str) -> dict[str, float]:
    table = load_tables()["7.1"]
    figures = {column: table.figures.get((row, column)) for column in table.columns}
    return {column: figure.mean for column, figure in figures.items() if figure is not None}


def rows() -> list[str]:
    return list(load_tables()["7.1"].rows)


def test_the_published_downloads_have_eight_bytes_for_a_parameter() -> None:
    recipe: Any = builder("vgg-16", (3, 32, 32), 10)
    parameters = sum(value.numel() for value in recipe.skeleton().parameters())
    assert published("VGG-16: FedAvg")["Down, MB"] == pytest.approx(8 * parameters / MIB, rel=1e-3)
    assert published("ResNet-8: FedAvg")["Down, MB"] == pytest.approx(8 * 4.93e6 / MIB, rel=1e-3)


@pytest.mark.parametrize("row", [row for row in rows() if "REFT" in row])
def test_the_published_upload_of_reft_is_200_batches_of_512_samples(row: str) -> None:
    assert published(row)["Up, MB"] == pytest.approx(200 * 512 * 10 * 8 / MIB, abs=0.005)


@pytest.mark.parametrize("row", rows())
def test_published_totals_are_both_directions_times_the_rounds(row: str) -> None:
    found = published(row)
    megabytes = found["Down, MB"] + found["Up, MB"]
    if "Total, MB" in found:  # one shot
        assert found["Total, MB"] == pytest.approx(megabytes, abs=0.06)
        return
    rounds = next(cell.raw["train"]["rounds"] for cell in build_cells(load_tables()["7.1"], "full") if cell.row == row)
    ratio = next((value for name, value in AGAINST_THE_FORMULA.items() if row.startswith(name)), 1.0)
    assert found["Total, GB"] == pytest.approx(ratio * megabytes * rounds / 1024, rel=0.01)


def test_accuracies_are_those_after_training() -> None:
    cells = build_cells(load_tables()["7.1"], "full")
    assert {cell.metric for cell in cells if cell.column == "Accuracy, %"} == {"final"}

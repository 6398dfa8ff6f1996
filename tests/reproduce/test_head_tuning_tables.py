"""Tables 3.2 to 4.1 and A.2 to A.5: the published figures, and the ledger beside the formulas of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.methods import FedMeZO
from undergrowth.models import builder
from undergrowth.reproduce import catalogue, load_tables, reproduce_table
from undergrowth.reproduce.data_paths import DataPaths, parse_data_paths
from undergrowth.reproduce.table import Figure, Table
from undergrowth.reproduce.table_cells import build_cells
from undergrowth.reproduce.weights import HOW_TO_GET, weights_source
from undergrowth.runs import Store
from undergrowth.sweeps.jobs import Job

FEATURES, BASE = 512, 746_424  # of SqueezeNet, as the published GB imply
CLASSES = {"CIFAR-10": 10, "CIFAR-10 at 32 px": 10, "Flowers-102": 102, "CUB": 200, "Stanford Cars": 196}
IMAGES = {"CIFAR-10": 50_000, "CIFAR-10 at 32 px": 50_000, "Flowers-102": 1020, "CUB": 5994, "Stanford Cars": 8144}
DIGITS: dict[str, Any] = {
    "data": "digits", "data_options": {"train_samples": 30, "test_samples": 30}, "clients": 3, "rounds": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERGROWTH_DATA", str(tmp_path / "data"))


def test_the_published_costs_follow_from_the_formulas_of_the_source() -> None:
    """Equations 8 to 11 with 100 devices in every round. A slip in copying a figure would show here."""
    table = load_tables()["3.2"]
    rounds = {cell.row: cell.raw["train"]["rounds"] for cell in build_cells(table, "full")}
    for row in table.rows:
        data, method = row.split(": ")
        head = CLASSES.get(data, 10) * FEATURES
        sent = head if method in ("LP", "FedNCM") else head + BASE
        bias = CLASSES[data] if row == "Flowers-102: LP" else 0
        gigabytes = 2 * (sent + bias) * 4 * 100 * rounds[row] / 1e9
        assert table.figures[row, "Traffic, GB"].mean == pytest.approx(gigabytes, rel=0.012 if sent == head else 1e-4)
        passes = rounds[row] * IMAGES.get(data, 5000) * (1 if method == "LP" else 3)
        if method == "FedNCM":
            passes = 1
        misprint = 0.1 if row == "CIFAR-10: LP" else 1
        assert table.figures[row, "Computing, forward passes"].mean == pytest.approx(misprint * passes, rel=0.02)


def test_the_published_traffic_of_fedmezo_is_equation_6_with_one_direction() -> None:
    table = load_tables()["4.1"]
    for cell in build_cells(table, "full"):
        if "FedMeZO" in cell.row and cell.column == "Traffic, GB":
            sent = FedMeZO(directions=1).source_bytes(cell.raw["train"]["rounds"], 10)
            assert table.figures[cell.place].mean == pytest.approx(sent / 1e9)


def test_tables_repeat_figures_of_table_3_2() -> None:
    tables = load_tables()
    accuracy = {row: figure for (row, column), figure in tables["3.2"].figures.items() if column == "Accuracy, %"}
    for data in ("CIFAR-10", "Flowers-102"):
        of_fedavg = {column: tables["3.3"].figures[f"{data}: FedAvg", column] for column in tables["3.3"].columns}
        assert of_fedavg == {column: accuracy[f"{data}: {column}"] for column in of_fedavg}
        assert tables["A.3"].figures[f"{data}: FedNCM", "Accuracy"] == accuracy[f"{data}: FedNCM+FT"]
    probes = {row: figure for (row, _), figure in tables["A.2"].figures.items() if row.endswith(": LP")}
    assert probes == {row: accuracy[row] for row in probes} and len(probes) == 5


@pytest.mark.parametrize("name", ["fedncm", "lp", "ft"])
def test_the_ledger_has_the_bytes_of_appendix_a_1(name: str) -> None:
    """In four bytes for each number; the source leaves out biases, counts of classes and the number of samples."""
    freeze = {} if name == "ft" else {"freeze": "head"}
    result = ug.run(method=name, model="squeezenet", model_options={"image_size": 17, **freeze}, **DIGITS)
    parameters = sum(value.numel() for value in builder("squeezenet", (1, 17, 17), 10)().parameters())
    head = 10 * (FEATURES + 1)
    numbers = {"fedncm": head, "lp": head, "ft": head + (parameters - head)}[name]
    asks = 3 * (1 if name == "fedncm" else 2)
    scalars = 0 if name == "fedncm" else 8  # the number of samples
    assert result.ledger.bytes_down == 4 * numbers * asks
    assert result.ledger.bytes_up == (4 * numbers + scalars) * asks
    if name != "ft":  # for 100 devices in every round, as published
        rounds = {"fedncm": 1, "lp": 200}[name]
        total = (result.ledger.bytes_down + result.ledger.bytes_up) / asks * 100 * rounds / 1e9
        published = load_tables()["3.2"].figures[f"CIFAR-10: {'LP' if name == 'lp' else 'FedNCM'}", "Traffic, GB"]
        assert total == pytest.approx(published.mean, rel=0.005)


def test_the_ledger_of_fedmezo_has_48_bytes_for_a_device_and_round() -> None:
    result = ug.run(method="fedmezo", model="logistic", options={"initial": "seed"}, **DIGITS)
    without_slopes = 2 * 4 * 3  # nothing happened before the first round
    assert result.ledger.bytes_down + result.ledger.bytes_up == 48 * 3 * 2 - without_slopes


def test_small_figures_are_shown_with_their_digits() -> None:
    assert [f"{Figure(each)}" for each in (7.863e-5, 0.0041, 0.82, 1803.71, 4.5e8, 0.0)] == [
        "7.863e-05", "0.0041", "0.82", "1803.71", "4.5e+08", "0.00",
    ]  # fmt: skip
    assert f"{Figure(40.02, 0.04)}" == "40.02 ± 0.04"


@pytest.mark.parametrize(("name", "only"), [("3.2", "*LP|*FedNCM|*: FT"), ("4.1", "*FedMeZO, IID")])
def test_smoke_cells(name: str, only: str) -> None:
    result = reproduce_table(name, only=only)
    values = {each.cell.place: each.values[0] for each in result.cells}
    assert not result.failed and not result.left_out
    if name == "3.2":
        passes = {row: value for (row, column), value in values.items() if column.startswith("Computing")}
        assert passes["CIFAR-10: FedNCM"] == pytest.approx(300, rel=1e-3)  # one for each image
        assert 2 * 300 * 2.5 < passes["CIFAR-10: FT"] <= 2 * 300 * 3
        bytes_sent = 2 * 10 * (FEATURES + 1) * 4 * 4
        assert values["CIFAR-10: FedNCM", "Traffic, GB"] == pytest.approx(bytes_sent / 1e9)
    else:
        assert values["SST-2: FedMeZO, IID", "Traffic, GB"] == pytest.approx((48 * 4 * 4 - 8 * 4) / 1e9)


def weighted_table(**changes: Any) -> Table:
    """A table with two rows, of which one needs a file of weights."""
    raw = {
        "tables": ["9.1"], "title": "weights", "source": "invented",
        "experiment": {"model": {"name": "mlp", "hidden": 4}, "data": {"name": "digits", "clients": 2},
                       "train": {"rounds": 1}},
        "columns": {"digits": {}},
        "rows": {"random": {"method": "fedavg"}, "tuned": {"method": "lp", "start": {"weights": "squeezenet"}}},
        "published": {"random": [1], "tuned": [2]},
        "scales": {"full": {"seeds": 1}, "small": {"seeds": 1}, "smoke": {"seeds": 1}},
    }  # fmt: skip
    return Table.model_validate({**raw, **changes})


def test_weights_are_named_like_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = weighted_table()
    monkeypatch.setattr(catalogue, "load_tables", lambda: {"9.1": table})
    left_out = reproduce_table("9.1")
    assert left_out.left_out == {"tuned/digits": "missing data: squeezenet"}
    assert left_out.missing == {"squeezenet": f"give --data-path squeezenet={HOW_TO_GET['squeezenet']}"}
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        torch.save(builder("mlp", (1, 8, 8), 10, hidden=4)().state_dict(), tmp_path / folder / "weights.pth")
        paths = parse_data_paths([f"squeezenet={tmp_path / folder}/weights.pth"], {"squeezenet"})
        result = reproduce_table("9.1", paths=paths)
        assert not result.left_out and not result.failed
    # The name of the file is part of the experiment and its folder is not.
    assert len(Store("runs").runs()) == 2
    with pytest.raises(InputError, match="there is no such folder or file"):
        reproduce_table("9.1", paths={"squeezenet": "nowhere.pth"})


def test_models_of_hugging_face_are_named_by_their_folder(tmp_path: Path) -> None:
    raw = {"model": {"name": "hf:roberta-large", "pooling": "first"}, "data": {"name": "digits"}}
    assert weights_source(raw) == "roberta-large" and weights_source({"data": {"name": "digits"}}) is None
    filled = DataPaths({"roberta-large": str(tmp_path)}).fill_in(raw)
    assert filled["model"] == {"name": f"hf:{tmp_path}", "pooling": "first"}
    assert DataPaths({}).missing(raw) == {"roberta-large"}
    assert Job(filled).experiment.model.name == f"hf:{tmp_path}"


def test_every_weights_name_of_a_table_has_an_explanation() -> None:
    named = {
        weights_source(raw)
        for table in load_tables().values()
        for scale in table.scales
        for cell in build_cells(table, scale)
        for raw in cell.experiments
    }
    assert named - {None} == set(HOW_TO_GET)

"""Histories and tables for other programs, and the names of runs."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import pytest

import undergrowth as ug
from tests.report.conftest import record
from undergrowth.report.groups import group_records
from undergrowth.report.run_export import history_rows, latex_table
from undergrowth.report.run_names import find_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of FedProx and one of FedAvg."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, method, options in ((0, "fedprox", {"mu": 0.5}), (1, "fedprox", {"mu": 0.5}), (0, "fedavg", {})):
        ug.run(
            method, options=options, model="logistic", rounds=2, clients=3, seed=seed, out=folder,
            data_options={"train_samples": 60}, progress=False,
        )  # fmt: skip
    return folder


def test_csv_has_a_row_per_round(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "history.csv"
    text = ug.report.export([f"{folder}/*"], "csv", target=target).decode("utf-8")
    assert target.read_text(encoding="utf-8") == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0])[:5] == ["run", "method", "seed", "method.mu", "round"]
    assert [(row["method"], row["seed"], row["method.mu"], row["round"]) for row in rows[2:5]] == [
        ("fedprox", "1", "0.5", "1"), ("fedprox", "1", "0.5", "2"), ("fedavg", "0", "", "1"),
    ]  # fmt: skip
    last = ug.load("last", folder)
    assert float(rows[-1]["accuracy"]) == last.accuracy and int(rows[-1]["bytes_up"]) == last.ledger.bytes_up


def test_rows_of_all_runs_have_the_same_columns() -> None:
    first, second = record("run-1"), record("run-2", settings={"train": {"lr": 0.5}})
    second.rounds[0]["accuracy/half"] = 0.5
    rows = history_rows([first, second])
    assert len({tuple(row) for row in rows}) == 1
    assert rows[0]["accuracy/half"] is None and rows[3]["accuracy/half"] == 0.5
    assert history_rows([record(rounds=0)]) == []


def test_latex() -> None:
    runs = [
        record(f"run-{seed}", settings={"method": {"name": "a_b", "x": "%"}, "run": {"seed": seed}}) for seed in (0, 1)
    ]
    runs.append(record("run-2", settings={"method": "fedavg"}))
    for run, accuracy, size in zip(runs, (0.5, 0.7, 0.91234), (2_000_000, 4_000_000, 7), strict=True):
        run.row["summary"].update(accuracy=accuracy, bytes_up=size, bytes_down=0)
    assert latex_table(group_records(runs)).splitlines() == [
        r"\begin{tabular}{lrrrrrr}",
        r"\toprule",
        r" & Runs & Accuracy (\%) & Loss & Time (s) & Sent (MB) & Energy (J) \\",
        r"\midrule",
        r"a\_b, x \% & 2 & $60.00 \pm 14.14$ & $0.3333 \pm 0.0000$ & $6.000 \pm 0.000$ & $3.000 \pm 1.414$ "
        r"& $1.500 \pm 0.000$ \\",
        r"fedavg & 1 & $91.23$ & $0.3333$ & $6.000$ & $0.000007$ & $1.500$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_parquet(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(io.BytesIO(ug.report.export([str(folder)], "parquet"))).to_pylist()
    assert len(rows) == 6 and rows[-1]["accuracy"] == ug.load("last", folder).accuracy
    assert rows[0]["method.mu"] == 0.5 and rows[-1]["method.mu"] is None


def test_what_is_missing_is_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ug.InputError, match=r"pip install 'undergrowth\[parquet\]'"):
        ug.report.export(["last"], "parquet", folder)
    with pytest.raises(ug.InputError, match="pip install pandas"):
        ug.load("last", folder).to_pandas()
    with pytest.raises(ug.InputError, match="of 'client' is not a table of a result; did you mean 'clients'"):
        ug.load("last", folder).to_pandas("client")
    with pytest.raises(ug.InputError, match="format 'xls' is not known"):
        ug.report.export(["last"], "xls", folder)
    with pytest.raises(ug.InputError, match="group is for latex"):
        ug.report.export(["last"], "csv", folder, group=["method"])
    with pytest.raises(ug.InputError, match="is a folder"):
        ug.report.export(["last"], "csv", folder, tmp_path)


def test_to_pandas(folder: Path) -> None:
    pytest.importorskip("pandas")
    result = ug.load("last", folder)
    assert result.to_pandas()["accuracy"].tolist() == [row["accuracy"] for row in result.history]
    assert result.to_pandas("clients")["device"].tolist() == [row["device"] for row in result.clients]
    assert result.to_pandas("ledger")["bytes_up"].sum() == result.ledger.bytes_up


def test_list(folder: Path) -> None:
    rows = ug.list(folder)
    assert [row["method"] for row in rows] == ["fedprox", "fedprox", "fedavg"]
    assert rows[-1]["run"] == ug.load("last", folder).run and rows[-1]["rounds_done"] == 2


def test_names_of_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_runs = [row["run"] for row in ug.list(folder)]
    assert find_runs(["last", all_runs[0]], folder) == (folder, [all_runs[2], all_runs[0]])
    assert find_runs(["*fedprox*", all_runs[0]], folder) == (folder, all_runs[:2])
    monkeypatch.chdir(folder.parent)
    relative = Path(folder.name)
    assert (
        find_runs([f"{relative}/*"])
        == find_runs([f"{relative}"])
        == find_runs([f"{relative}/"])
        == (relative, all_runs)
    )
    expanded = sorted(str(path) for path in relative.iterdir())  # with the store, as a shell does it
    assert len(expanded) > 3 and sorted(find_runs(expanded)[1]) == sorted(all_runs)
    assert find_runs("last", folder) == find_runs(["last"], folder)
    assert ug.report.export("last", "csv", folder) == ug.report.export(["last"], "csv", folder)
    for odd in (3, [3], None):
        with pytest.raises(ug.InputError, match=re.escape(f"runs {odd!r} must be a name or a list of names")):
            find_runs(odd, folder)
    with pytest.raises(ug.InputError, match="an empty list names no run"):
        find_runs([], folder)
    with pytest.raises(ug.InputError, match="matches no run in"):
        find_runs([f"{relative}/*fedyogi*"])
    with pytest.raises(ug.InputError, match="names no run"):
        find_runs([f"{relative}/undergrowth.sqlite"])
    ug.run(model="logistic", rounds=1, clients=2, out=tmp_path, data_options={"train_samples": 20}, progress=False)
    with pytest.raises(ug.InputError, match="name runs of one folder"):
        find_runs([f"{tmp_path}/*", f"{folder}/*"])

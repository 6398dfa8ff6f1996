"""`undergrowth list`, `show`, `compare`, `report`, `export`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import last_json
from undergrowth.report.figures import outcomes_per_round
from undergrowth.report.run_record import load_records
from undergrowth.runs import Store


def ids(folder: str) -> list[str]:
    return [row["id"] for row in Store(folder).runs()]


def test_list(type_command, runs_folder: str) -> None:
    done = type_command("list", "--out", runs_folder)
    assert done.exit_code == 0
    assert all(run in done.stdout for run in ids(runs_folder))
    rows = last_json(type_command("list", "--out", runs_folder, "--json").stdout)
    assert [row["run"] for row in rows] == ids(runs_folder)
    assert rows[0]["status"] == "done" and rows[0]["rounds_done"] == 2 and 0 < rows[0]["accuracy"] <= 1
    assert [row["options"] for row in rows] == [{}, {"mu": 0.5}]


def test_list_of_an_empty_store(type_command) -> None:
    Store("runs", create=True).close()
    done = type_command("list")
    assert done.exit_code == 0 and "no runs" in done.stdout
    assert type_command("show", "last").exit_code == 2


def test_show(type_command, runs_folder: str) -> None:
    done = type_command("show", "last", "--out", runs_folder)
    assert done.exit_code == 0
    for words in ("fedprox", "-s method.mu=0.5", "sent up, all links", "train.lr", "arrived", "learning efficiency"):
        assert words in done.stdout
    found = last_json(type_command("show", "last", "--out", runs_folder, "--json").stdout)
    assert found["learning_efficiency"] > 0
    assert len(found["history"]) == 2 and found["settings"]["method"] == {"name": "fedprox", "mu": 0.5}
    devices = last_json(type_command("show", "last", "--out", runs_folder, "--json", "--devices").stdout)["devices"]
    lines = type_command("show", "last", "--out", runs_folder, "--devices").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.strip().startswith("device-")] == [
        row["device"] for row in devices
    ]
    done = type_command("show", "2026x", "--out", runs_folder)
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1


def test_show_and_page_of_a_tree_count_the_requests_to_its_devices(type_command) -> None:
    """The history has those to the children of the root, here two edge servers."""
    tree = ["--method", "hierfavg", "--topology", "tree:2x2", "--clients", "4", "--rounds", "2", "--engine", "serial"]
    assert type_command("run", *tree, "--seed", "0").exit_code == 0
    found = last_json(type_command("show", "last", "--json").stdout)
    assert [row["arrived"] for row in found["history"]] == [2, 2]
    lines = [line.split() for line in type_command("show", "last").stdout.splitlines()]
    columns = next(words for words in lines if words[:1] == ["round"])
    rounds = [words for words in lines if len(words) == len(columns) + 1 and words[0] in ("1", "2")]
    assert [words[columns.index("arrived")] for words in rounds] == ["8", "8"]  # each device trains twice in a round
    (record,) = load_records(Store("runs"), ["last"])
    figure = outcomes_per_round(record, "a run")
    assert figure is not None and [bar["y"] for bar in figure["data"]] == [[8, 8]]


def test_compare(type_command, runs_folder: str) -> None:
    first, second = ids(runs_folder)
    done = type_command("compare", first, "last", "--out", runs_folder)
    assert done.exit_code == 0, done.output
    for words in (
        first,
        second,
        "fedprox, mu 0.5",
        "method.mu",
        "0.5",
        "learning efficiency",
        "to reach an accuracy of",
    ):
        assert words in done.stdout
    assert "train.lr" not in done.stdout  # equal in both runs
    found = last_json(type_command("compare", first, "last", "--out", runs_folder, "--json").stdout)
    assert found["labels"] == ["fedavg", "fedprox, mu 0.5"]
    assert found["differences"] == {"method.name": ["fedavg", "fedprox"], "method.mu": [None, 0.5]}
    best = [max(row["accuracy"] for row in Store(runs_folder).rounds(run)) for run in (first, second)]
    assert found["common_accuracy"] == min(best)
    assert all(row["round"] in (1, 2) for row in found["to_reach_it"])


def test_compare_in_a_narrow_terminal(type_command, runs_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ids(runs_folder)
    for width, words in ((80, "learning efficiency"), (56, "too narrow for all figures")):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = type_command("compare", *runs, "--out", runs_folder).stdout.splitlines()
        assert any(words in line for line in lines) and max(map(len, lines)) <= width
        assert any("fedprox, mu 0.5" in line for line in lines)


def test_compare_needs_two(type_command, runs_folder: str) -> None:
    done = type_command("compare", "last", "last", "--out", runs_folder)
    assert done.exit_code == 2 and "two runs" in done.stderr


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_compare_refuses_a_metric_that_no_run_reaches(type_command, runs_folder: str, value: str) -> None:
    done = type_command("compare", "*", "--metric", value, "--out", runs_folder)
    assert done.exit_code == 2 and f"metric {value} must be a finite number" in done.stderr


def test_report(type_command, runs_folder: str) -> None:
    done = type_command("report", *ids(runs_folder), "--out", runs_folder, "-o", "page.html")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == "page.html"
    assert Path("page.html").stat().st_size > 1_000_000
    found = last_json(type_command("report", "last", "--out", runs_folder, "--json").stdout)
    assert found == {"report": "report.html", "runs": ids(runs_folder)[-1:]}


def test_report_of_a_pattern_with_groups(type_command, runs_folder: str) -> None:
    done = type_command("report", f"{runs_folder}/*", "--group", "method.mu", "-o", "page.html")
    assert done.exit_code == 0, done.output
    assert "</span>mu 0.5</button>" in Path("page.html").read_text(encoding="utf-8")
    done = type_command("report", f"{runs_folder}/*", "--group", "train.ls")
    assert done.exit_code == 2 and "did you mean 'train.lr'" in done.stderr


def test_export(type_command, runs_folder: str) -> None:
    done = type_command("export", f"{runs_folder}/*", "--csv")
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 1 + 2 * 2
    done = type_command("export", "last", "--latex", "-o", "table.tex", "--out", runs_folder)
    assert done.exit_code == 0 and done.stdout.strip() == "table.tex"
    assert Path("table.tex").read_text(encoding="utf-8").startswith(r"\begin{tabular}")
    for words, message in (
        ((), "export needs one of"),
        (("--csv", "--latex"), "not --csv and --latex"),
        (("--parquet",), "-o FILE"),
    ):
        done = type_command("export", "last", *words, "--out", runs_folder)
        assert done.exit_code == 2 and message in done.stderr

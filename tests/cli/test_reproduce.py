"""`undergrowth reproduce`: the list, a table of the package, its page, wrong input, and interruption."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.conftest import TIMEOUT, last_json, wait_until
from undergrowth.reproduce import load_tables
from undergrowth.runs import Store, atomic_files
from undergrowth.runs.lock import lock_run


def test_the_list(type_command) -> None:
    done = type_command("reproduce")
    assert done.exit_code == 0 and all(table.title in done.stdout for table in load_tables().values())
    rows = last_json(type_command("reproduce", "--json").stdout)
    by_name = {row["table"]: row for row in rows}
    assert list(by_name) == [" ".join(table.tables) for table in load_tables().values()]
    assert by_name["4.7"]["runs"]["full"] == 4 * 4 * 6  # two of five rows are the same run
    assert by_name["6.8"]["data"] == ["cifar10", "cifar100", "small-imagenet"]


def test_a_table(type_command, tmp_path: Path) -> None:
    words = ("reproduce", "4.7", "--only", "*FSCProx", "-o", "page.md")
    done = type_command(*words)
    assert done.exit_code == 0, done.output
    assert "Table 4.7" in done.stdout and "6 orderings need cells that were not run" in done.stdout
    page = Path("page.md").read_text(encoding="utf-8")
    for text in (
        "| FedAvg with FSCProx |",
        " / 69.39 ± 0.55 |",
        "## Orderings",
        "## Costs",
        "Digits of 8×8 pixels",
        "- all cells, unless a line below says otherwise: data digits",
        "undergrowth 0.",
        "cores",
    ):
        assert text in page
    facts = last_json(type_command(*words, "--json").stdout)
    first, second = facts["cells"]
    assert first["runs"] == second["runs"] and len(Store("runs").runs()) == 1  # one run, two metrics
    assert first["published"] == {"mean": 69.39, "spread": 0.55} and first["ours"]["mean"] == first["values"][0]
    ledger = Store("runs").runs()[0]["summary"]
    assert first["cost"] == {"flops": ledger["flops"], "traffic": ledger["bytes_up"] + ledger["bytes_down"]}
    assert facts["failed"] == {} and facts["scale"] == "smoke"
    assert {ordering["pair"] for ordering in facts["orderings"]} >= {"FedAvg with FSCProx > FedAvg"}


def test_the_page_of_a_figure_shows_its_plot(type_command) -> None:
    words = ("reproduce", "figure-4.10", "--only", "CIFAR-10/1", "-o", "pages")
    done = type_command(*words)
    assert done.exit_code == 0, done.output
    assert "![Figure 4.10, plot](figure-4.10.svg)" in Path("pages/figure-4.10.md").read_text(encoding="utf-8")
    assert "CIFAR-10" in Path("pages/figure-4.10.svg").read_text(encoding="utf-8")


def test_several_tables_and_a_time_limit(type_command) -> None:
    words = ("reproduce", "4.7", "4.8", "--only", "FedFSC+(FedAvg) | Without", "-o", "pages")
    done = type_command(*words, "--minutes", "1e-6")
    assert done.exit_code == 130 and not Store("runs").runs()
    assert "the time limit was reached, with unfinished runs of 4.7, 4.8: the same command continues" in done.stderr
    assert "## Not finished" in Path("pages/4.7.md").read_text(encoding="utf-8")
    done = type_command(*words)
    assert done.exit_code == 0 and len(Store("runs").runs()) == 1, done.output  # the tables share the run
    for table in ("4.7", "4.8"):
        page = Path(f"pages/{table}.md").read_text(encoding="utf-8")
        assert f"# Table {table}: " in page and "Not finished" not in page
    facts = last_json(type_command(*words, "--seeds", "2", "--estimate", "--json").stdout)
    assert facts["runs"] == 1 and [each["runs"] for each in facts["tables"].values()] == [1, 0]


def test_an_estimate_runs_nothing(type_command, tmp_path: Path) -> None:
    words = ("reproduce", "4.7", "--only", "FedAvg", "--seeds", "2", "--jobs", "auto", "--estimate")
    done = type_command(*words)
    assert done.exit_code == 0 and done.stdout.startswith("2 runs to do, "), done.output
    facts = last_json(type_command(*words, "--json").stdout)
    assert facts["runs"] == 2 and facts["flops"] > 0 and facts["seconds"] > 0 and facts["assumed"]
    assert not Store("runs").runs()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["4.33"], "table '4.33' is not known; did you mean '4.3'?"),
        (["4.3", "--scale", "smal"], "scale 'smal' is not known; did you mean 'small'?"),
        (["4.3", "--only", "nobody"], "--only 'nobody' matches no cell of table 4.3"),
        (["4.3", "--data-path", "cifar10"], "--data-path 'cifar10' must be NAME=FOLDER"),
        (["4.3", "--data-path", "cifr10=x"], "did you mean 'cifar10'?"),
        (["4.3", "--scale", "small", "--data-path", "cifar10=nowhere"], "there is no such folder or file"),
        (["6.3", "--scale", "full"], "table 6.3 needs missing data: cifar10 (give --data-path cifar10=FOLDER"),
        (["4.3", "-o", "no/such/page.md"], "there is no folder 'no/such'"),
        (["4.3", "--jobs", "many"], "jobs 'many' must be auto, or a number of at least 1"),
        (["4.3", "-o", "page.txt"], "--output 'page.txt' must end in .md or .html, or be a folder"),
        (["4.3", "4.5", "-o", "page.md"], "--output 'page.md' must be a folder for the pages of 2 tables"),
        (["4.3", "4.55"], "table '4.55' is not known; did you mean '4.5'?"),
        (["all", "4.55"], "table '4.55' is not known; did you mean '4.5'?"),
        (["4.3", "--minutes", "0"], "minutes 0.0 must be above 0"),
        (["4.3", "-s", "train.lr"], "-s 'train.lr' must be path=value"),
        (["4.3", "-s", "train.rate=1"], "train.rate"),
        (["4.3", "--jobs", "0"], "jobs 0 must be auto, or a number of at least 1"),
    ],
)
def test_wrong_input(type_command, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.setenv("UNDERGROWTH_DATA", "empty")
    done = type_command("reproduce", *words)
    assert done.exit_code == 2 and message in done.stderr, done.output
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("target", ["folder.md", "locked/pages", "locked/page.md"])
def test_a_page_that_cannot_be_written(type_command, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    for name in ("folder.md", "locked"):
        Path(name).mkdir()
    monkeypatch.setattr(atomic_files.os, "access", lambda path, mode: Path(path).name != "locked")
    done = type_command("reproduce", "4.3", "-o", target)
    assert done.exit_code == 2 and ("is a folder" in done.stderr or "' is read-only); name another" in done.stderr)
    assert not Path("runs").exists() and not Path("locked/pages").exists()


@pytest.mark.slow
def test_ctrl_c_stops_the_workers(process, tmp_path: Path) -> None:
    running = process(["reproduce", "4.5", "--jobs", "2", "--seeds", "1000"])  # cannot finish before it is interrupted
    wait_until(lambda: any(tmp_path.glob("runs/*/checkpoints/*.safetensors")), running)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=TIMEOUT)
    assert running.returncode == 130 and "the same command continues where it stopped" in stderr
    rows = Store(tmp_path / "runs").runs()
    assert rows and {row["status"] for row in rows} <= {"done", "interrupted", "running"}
    for row in rows:  # no process holds the lock of a run
        with lock_run(tmp_path / "runs" / row["id"]):
            pass

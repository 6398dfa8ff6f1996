"""`run --personal`, and what show, compare and report say about the models of devices."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

import undergrowth as ug
from tests.cli.conftest import last_json
from undergrowth.report.personal_section import relative_against_local, relative_boxes, relative_histogram
from undergrowth.report.run_page import build_page
from undergrowth.report.run_record import load_records
from undergrowth.runs import Store
from undergrowth.runs.relative_accuracy import from_rows

WORDS = (
    "run", "--model", "logistic", "--clients", "4", "--fleet", "mixed-edge", "-s", "data.train_samples=200",
    "-s", "data.holdout=0.2", "--engine", "serial", "--quiet", "--no-report",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with two runs that differ in their number of rounds."""
    folder = str(tmp_path_factory.mktemp("runs"))
    for rounds in (1, 3):
        ug.run(
            model="logistic", clients=4, rounds=rounds, fleet="mixed-edge", engine="serial", out=folder,
            data_options={"train_samples": 200, "holdout": 0.2}, personal={"adapt": ["ditto:0.5"], "epochs": 1},
            progress=False,
        )  # fmt: skip
    return folder


def test_the_flag_adds_the_phase(type_command) -> None:
    done = type_command(*WORDS, "--rounds", "1", "--personal", "-s", "personal.epochs=1")
    assert done.exit_code == 0, done.output
    for words in ("local", "federated", "fine-tune", "worst 10 %", "of 4 devices", "have a better model alone"):
        assert words in done.stdout
    done = type_command(*WORDS, "--rounds", "1", "-s", "personal.adapt=[]", "-s", "personal.epochs=1", "--json")
    assert set(last_json(done.stdout)["personal"]) == {"local"}
    done = type_command("show", "last")
    assert "--personal" in done.stdout and "personal.epochs=1" in done.stdout


def test_show(folder: str, type_command) -> None:
    done = type_command("show", "last", "--out", folder)
    assert done.exit_code == 0 and "worst 10 %" in done.stdout and "ditto:0.5" in done.stdout
    found = last_json(type_command("show", "last", "--out", folder, "--json").stdout)["relative"]
    assert set(found) == {"federated", "ditto:0.5"} and found["federated"]["devices"] == 4
    assert sum(each["devices"] for each in found["federated"]["classes"].values()) == 4


def test_no_cell_is_broken_in_a_narrow_terminal(folder: str, type_command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = type_command("show", "last", "--out", folder)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert re.search(
        r"accuracy +relative +best 10 % +worst 10 % +below 0 *\n model +variance( +variance){3} *\n", done.stdout
    )
    percent, whole = r"[+-]\d+\.\d %", r"\d+"
    wide = rf"federated +\d+\.\d % +{percent} +{percent} +{percent} +{whole} *"
    assert re.search(wide + r"\n +\d+\.\d +\d+\.\d +\d+\.\d +\d+\.\d +\d+\.\d % *\n", done.stdout)


def test_compare_says_who_gains_and_who_loses(folder: str, type_command) -> None:
    with closing(Store(folder)) as store:
        with_runs = [row["id"] for row in store.runs()]
    done = type_command("compare", *with_runs, "--out", folder)
    assert done.exit_code == 0, done.output
    for words in ("relative accuracy, federated", "devices below 0, ditto:0.5", "gain", "lose", "mean change"):
        assert words in done.stdout
    (change,) = last_json(type_command("compare", *with_runs, "--out", folder, "--json").stdout)["changes"]["federated"]
    before, after = (ug.load(run, folder).personal for run in with_runs)
    assert before is not None and after is not None
    pairs = [(before.by_device("federated")[device], after.by_device("federated")[device]) for device in before.devices]
    assert change["gain"] == sum(new > old for old, new in pairs)
    assert change["lose"] == sum(new < old for old, new in pairs)


def test_the_page_shows_the_distribution_and_the_scatter(folder: str) -> None:
    with closing(Store(folder)) as store:
        records = load_records(store, [row["id"] for row in store.runs()])
    page = build_page(records)
    for words in ("Who gains by joining", "Relative against local accuracy", "Who gains or loses between runs"):
        assert words in page.render() or any(words in str(each["layout"]["title"]) for each in page.drawings.values())
    assert "Who gains or loses between runs" not in build_page(records[:1]).body
    assert "Who gains by joining" in page.body


def test_figures_have_the_values_of_the_devices() -> None:
    rows = [(device, "local", 0.5) for device in "abc"]
    rows += [(device, "federated", value) for device, value in zip("abc", (0.25, 0.5, 1.0), strict=True)]
    personal = from_rows(rows, dict.fromkeys("abc", "phone"))
    assert personal is not None
    (points,) = relative_against_local(personal)["data"]
    assert points["x"] == [0.5] * 3 and points["y"] == [-0.25, 0.0, 0.5]
    (box,) = relative_boxes(personal)["data"]
    assert (box["lowerfence"], box["median"], box["upperfence"]) == ([-0.25], [0.0], [0.5])
    (line,) = relative_histogram(personal)["data"]
    assert sum(line["y"]) == 3

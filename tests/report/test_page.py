"""The page: self-contained and escaped; and the command that repeats a run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import undergrowth as ug
from tests.packed_pages import figures_of
from tests.report.conftest import record
from undergrowth.core import InputError
from undergrowth.report.partition import rebuild_partition
from undergrowth.report.rerun import FLAG_PATHS, rerun_command
from undergrowth.report.run_page import build_page
from undergrowth.report.run_record import short_labels
from undergrowth.runs import config, experiment_file


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    ug.run(model="logistic", rounds=1, clients=4, out=str(folder))
    return folder


def test_write_report(run_folder: Path, tmp_path: Path) -> None:
    path = ug.report.write_report(["last"], run_folder, tmp_path / "deep" / "page.html")
    text = path.read_text(encoding="utf-8")
    assert "<title>fedavg on digits</title>" in text
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", text)  # nothing is loaded from a network
    assert "undergrowth run --method fedavg" not in text  # defaults are omitted
    assert re.search(r"<pre>undergrowth run [^<]*--model logistic", text)
    figures = figures_of(text)
    assert len(figures) == len(set(re.findall(r'<div id="(figure-\d+)">', text))) >= 15
    assert "training samples on 4 devices" in text
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]


def test_user_texts_are_escaped() -> None:
    run = record(settings={"method": {"name": "</script><script>alert(1)</script>"}, "data": "<b>data</b>"})
    text = build_page([run, record("run-0002")]).render()
    assert "<script>alert(1)" not in text and "<b>strange</b>" not in text and "<b>data" not in text


def test_a_page_about_an_unfinished_run() -> None:
    run = record(devices=0, status="interrupted")
    text = build_page([run]).render()
    assert "interrupted" in text and run.resume_command in text
    assert "No round is finished yet" in build_page([record(rounds=0, devices=0, status="running")]).render()


def test_a_page_about_many_devices() -> None:
    run = record(devices=10_000)
    text = build_page([run]).render()
    assert len(text) < 2_000_000
    assert "(200 of 10 000)" in text


def test_a_page_about_many_runs_starts_with_curves() -> None:
    methods = ("fedavg", {"name": "fedprox", "mu": 0.1}, {"name": "fedprox", "mu": 0.5}, "local", "moon")
    runs = [
        record(f"run-{method}-{seed}", devices=100, rounds=50, settings={"method": method, "run": {"seed": seed}})
        for method in methods for seed in range(3)
    ]  # fmt: skip
    text = build_page(runs).render()
    assert len(text) < 2_000_000
    places = [text.index(words) for words in ("fedprox, mu 0.5</button>", 'id="figure-1"', "<h2>Results", "<h2>Runs")]
    assert places == sorted(places)
    assert text.count("data-group=") == 5 and text.count('<details class="card">') == 15
    assert text.count('<td>fedprox, mu 0.5</td><td class="number">3</td>') == 1
    by_seed = build_page(runs, group=["run.seed"]).render()
    assert re.findall(r"</span>(seed \d)</button>", by_seed) == ["seed 0", "seed 1", "seed 2"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js to run the page's script")
def test_the_script_of_a_page_unpacks_and_draws(tmp_path: Path) -> None:
    """The script runs in Node.js with the parts of a browser that it uses; only plotly.js is not executed."""
    page, check = tmp_path / "page.html", Path(__file__).with_name("draw_page.js")
    page.write_text(build_page([record(), record("run-0002")]).render(), encoding="utf-8")
    done = subprocess.run(["node", str(check), str(page)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["library"].startswith("/**\n* plotly.js") and found["messages"] == []
    assert found["drawn"] == list(figures_of(page.read_text(encoding="utf-8")))


def test_a_report_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        ug.report.write_report([], tmp_path)
    with pytest.raises(InputError, match="holds no runs"):
        ug.report.write_report(["last"], tmp_path)
    with pytest.raises(InputError, match="runs 3 must be a name or a list of names"):
        ug.report.write_report(3, tmp_path)  # type: ignore[arg-type]


def test_partitions_that_cannot_be_rebuilt_are_left_out() -> None:
    assert rebuild_partition(record(settings={"data": {"name": "digits", "clients": 5}})) is not None
    assert rebuild_partition(record(settings={"data": {"name": "mnist", "path": "nowhere"}})) is None
    assert rebuild_partition(record(settings={"data": "femnist"})) is None  # too large
    assert rebuild_partition(record(settings={"method": "central"})) is None
    assert rebuild_partition(record(objects={"data": "Mine"})) is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": {"name": "fedprox", "mu": 0.5}, "train": {"lr": 1e-5, "rounds": 3}},
        {"data": {"name": "npz", "path": "my data/it's.npz", "clients": 7}, "topology": "tree:2x2"},
        {"model": {"name": "mlp", "hidden": [32, 16]}, "fleet": {"name": "phones", "deadline": 60}},
        {"stop": {"bytes": 1000}, "train": {"rounds": 10}},
        {"data": {"name": "my.csv", "label": "y", "group": "user", "partition": "dirichlet:0.1"}},
        {"topology": {"nodes": {"top": {}, "edge.1": {"parent": "top", "devices": 3}}}},
        {"method": {"name": "other", "text": "a: b", "empty": "", "flag": True}, "run": {"seed": 9, "out": "my runs"}},
    ],
)
def test_the_command_repeats_the_run(settings) -> None:
    run = record(settings=settings)
    words = shlex.split(rerun_command(run))
    assert words[:2] == ["undergrowth", "run"]
    raw: dict = {}
    for flag, value in zip(words[2::2], words[3::2], strict=True):
        path = FLAG_PATHS.get(flag.removeprefix("--"))
        experiment_file.assign_text(raw, value if path is None else f"{path}={value}")
    assert config.parse_experiment(raw) == config.parse_experiment(settings)


@pytest.mark.parametrize("start", [{}, {"warm_rounds": 1}])
def test_the_command_leaves_the_engines_of_several_phases_to_auto(start: dict) -> None:
    run = record(settings={"start": start, "run": {"engine": "processes", "stack": True}})
    run.row["notes"].append("engine auto: processes of stacked clients, because")
    assert ("--engine processes -s run.stack=true" in rerun_command(run)) == (not start)


def test_a_run_with_objects_has_no_command() -> None:
    assert "from Python" in rerun_command(record(objects={"model": "MyNet"}))


def test_labels_are_distinct() -> None:
    first, second = record("run-0001"), record("run-0002", settings={"method": {"name": "fedprox", "mu": 0.5}})
    assert short_labels([first]) == ["run-0001"]
    assert short_labels([first, second]) == ["fedavg", "fedprox, mu 0.5"]
    assert short_labels([first, record("run-0003", settings={"train": {"lr": 0.3}})]) == [
        "fedavg, lr 0.1",
        "fedavg, lr 0.3",
    ]
    assert short_labels([first, record("run-0004")]) == ["fedavg (0001)", "fedavg (0004)"]

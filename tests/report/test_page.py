"""The page: complete in itself, escaped, written whole; and the command that it prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import undergrowth as ug
from tests.report.conftest import record
from undergrowth.cli.run import PLACES
from undergrowth.core import InputError
from undergrowth.report.command import command
from undergrowth.report.page import page
from undergrowth.report.partition import partition_of
from undergrowth.report.record import labels
from undergrowth.runs import experiment_file
from undergrowth.runs.config import parse_experiment


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    ug.run(model="logistic", rounds=1, clients=4, out=str(folder))
    return folder


def test_a_page_from_python(run_folder: Path, tmp_path: Path) -> None:
    path = ug.report.report(["last"], run_folder, tmp_path / "deep" / "page.html")
    text = path.read_text(encoding="utf-8")
    assert "<title>fedavg on digits</title>" in text
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", text)  # nothing to be fetched
    assert "undergrowth run --method fedavg" not in text  # the default need not be said
    assert re.search(r"<pre>undergrowth run [^<]*--model logistic", text)
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])
    assert len(figures) == len(set(re.findall(r'<div id="(figure-\d+)">', text))) >= 15
    assert "training samples on 4 devices" in text
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]


def test_what_users_wrote_is_escaped() -> None:
    made = record(settings={"method": {"name": "</script><script>alert(1)</script>"}, "data": "<b>data</b>"})
    text = page([made, record("run-0002")]).render()
    assert "<script>alert(1)" not in text and "<b>strange</b>" not in text and "<b>data" not in text


def test_a_page_about_an_unfinished_run() -> None:
    made = record(devices=0, status="interrupted")
    text = page([made]).render()
    assert "interrupted" in text and made.resume_command in text
    assert "No round is finished yet" in page([record(rounds=0, devices=0, status="running")]).render()


def test_a_page_about_very_many_devices() -> None:
    made = record(devices=10_000)
    text = page([made]).render()
    assert len(text) < 6_000_000
    assert "(200 of 10 000)" in text


def test_a_report_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        ug.report.report([], tmp_path)
    with pytest.raises(InputError, match="holds no runs"):
        ug.report.report(["last"], tmp_path)


def test_partitions_that_cannot_be_had_are_left_out() -> None:
    assert partition_of(record(settings={"data": {"name": "digits", "clients": 5}})) is not None
    assert partition_of(record(settings={"data": {"name": "mnist", "path": "nowhere"}})) is None
    assert partition_of(record(settings={"data": "femnist"})) is None  # too large to read for a picture
    assert partition_of(record(settings={"method": "central"})) is None
    assert partition_of(record(objects={"data": "Mine"})) is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": {"name": "fedprox", "mu": 0.5}, "train": {"lr": 1e-5, "rounds": 3}},
        {"data": {"name": "npz", "path": "my data/it's.npz", "clients": 7}, "topology": "tree:2x2"},
        {"model": {"name": "mlp", "hidden": [32, 16]}, "fleet": {"name": "phones", "deadline": 60}},
        {"method": {"name": "other", "text": "a: b", "empty": "", "flag": True}, "run": {"seed": 9, "out": "my runs"}},
    ],
)
def test_the_command_does_the_same_again(settings) -> None:
    made = record(settings=settings)
    words = shlex.split(command(made))
    assert words[:2] == ["undergrowth", "run"]
    tree: dict = {}
    for flag, value in zip(words[2::2], words[3::2]):
        place = PLACES.get(flag.removeprefix("--"))
        experiment_file.assign_text(tree, value if place is None else f"{place}={value}")
    assert parse_experiment(tree) == parse_experiment(settings)


def test_objects_cannot_be_typed() -> None:
    assert "from Python" in command(record(objects={"model": "MyNet"}))


def test_labels_tell_runs_apart() -> None:
    one, two = record("run-0001"), record("run-0002", settings={"method": {"name": "fedprox", "mu": 0.5}})
    assert labels([one]) == ["run-0001"]
    assert labels([one, two]) == ["fedavg", "fedprox, mu 0.5"]
    assert labels([one, record("run-0003", settings={"train": {"lr": 0.3}})]) == ["fedavg", "fedavg, lr 0.3"]
    assert labels([one, record("run-0004")]) == ["fedavg (0001)", "fedavg (0004)"]

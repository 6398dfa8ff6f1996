"""`undergrowth methods`, `datasets`, `models`, `fleets`, `engines`: lists, details, unknown names."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import last_json
from undergrowth import data, devices, models
from undergrowth.cli.run import build_raw_experiment
from undergrowth.engines import ENGINES
from undergrowth.methods import METHODS
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.method_builder import build_method

CATALOGUES = {
    "methods": list(METHODS),
    "datasets": data.names(),
    "models": models.names(),
    "fleets": devices.names(),
    "engines": ["auto", *ENGINES],
}


@pytest.mark.parametrize("command", CATALOGUES)
def test_lists(type_command, command: str) -> None:
    done = type_command(command)
    assert done.exit_code == 0, done.output
    assert all(name in done.stdout for name in CATALOGUES[command])
    rows = last_json(type_command(command, "--json").stdout)
    assert len(rows) == len(CATALOGUES[command])


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in CATALOGUES for name in CATALOGUES[command]]
)
def test_details(type_command, command: str, name: str) -> None:
    done = type_command(command, name)
    assert done.exit_code == 0, done.output
    assert name in done.stdout and "undergrowth run" in done.stdout
    assert isinstance(last_json(type_command(command, name, "--json").stdout), dict)


@pytest.mark.parametrize(
    ("command", "name", "meant"),
    [
        ("methods", "fedprx", "fedprox"), ("datasets", "cifar11", "cifar10"), ("models", "cmn", "cnn"),
        ("fleets", "mixed-edg", "mixed-edge"), ("engines", "seriel", "serial"),
    ],
)  # fmt: skip
def test_unknown_names(type_command, command: str, name: str, meant: str) -> None:
    done = type_command(command, name)
    assert done.exit_code == 2
    assert f"did you mean '{meant}'?" in done.stderr and len(done.stderr.splitlines()) == 1


def test_options_of_a_method(type_command) -> None:
    done = type_command("methods", "fedadam")
    for words in ("Reddi et al. 2021", "server_lr", "0.99", "at least 0, below 1", "decay of the mean squared change"):
        assert words in done.stdout


@pytest.mark.parametrize("name", METHODS)
def test_the_printed_example_of_a_method_is_a_valid_experiment(type_command, name: str) -> None:
    words = shlex.split(last_json(type_command("methods", name, "--json").stdout)["example"])
    assert words[:4] == ["undergrowth", "run", "--method", name]
    raw, _ = build_raw_experiment(None, words[5::2], {"method": name})
    options = parse_experiment(raw).method.model_dump()
    assert build_method(options.pop("name"), options) == METHODS[name]()


def test_defaults_are_shown_as_they_are_typed(type_command) -> None:
    shown = type_command("methods", "heterofl").stdout
    assert "[1.0, 0.5, 0.25, 0.125, 0.0625]" in shown and "true" in shown and "(1.0, 0.5" not in shown


def test_the_example_of_data_in_a_file_names_a_file(type_command) -> None:
    assert "-s data.path=~/data/mine.npz" in type_command("datasets", "npz").stdout


def test_a_method_in_a_module_without_a_docstring(type_command, monkeypatch) -> None:
    source = 'from undergrowth.methods import FedAvg\nclass Plain(FedAvg):\n    """FedAvg and nothing else."""\n'
    Path("plain_methods.py").write_text(source)
    monkeypatch.syspath_prepend(".")
    assert "FedAvg and nothing else." in type_command("methods", "plain_methods:Plain").stdout


def test_a_regression_has_outputs_and_no_classes(type_command) -> None:
    shown = type_command("datasets", "diabetes").stdout
    assert "outputs" in shown and "classes" not in shown


def test_how_to_get_a_data_set(type_command) -> None:
    done = type_command("datasets", "cifar10")
    for words in ("3×32×32", "50 000", "184 MB", "https://www.cs.toronto.edu", "data_batch", "-s data.path="):
        assert words in done.stdout


def test_the_plot_of_a_partition(type_command) -> None:
    done = type_command("datasets", "digits", "--plot", "plot.html", "--partition", "classes:2", "--clients", 6)
    assert done.exit_code == 0, done.output
    assert "training samples on 6 devices" in Path("plot.html").read_text()
    assert type_command("datasets", "--plot", "plot.html").exit_code == 2
    done = type_command("datasets", "digits", "--plot", "other.html", "--partition", "dirichlet:x")
    assert done.exit_code == 2 and not Path("other.html").exists()


def test_a_model_name_with_numbers(type_command) -> None:
    assert "wrn-40-1" in type_command("models", "wrn-40-1").stdout


def test_a_fleet_file(type_command) -> None:
    Path("mine.yaml").write_text("devices:\n  - {profile: raspberry-pi-4, count: 3}\n")
    done = type_command("fleets", "mine.yaml")
    assert done.exit_code == 0 and "raspberry-pi-4" in done.stdout and "3 ×" in done.stdout


def test_help_without_a_command(type_command) -> None:
    done = type_command()
    assert done.exit_code == 0 and "Usage" in done.stdout
    assert type_command("--version").stdout.startswith("undergrowth ")

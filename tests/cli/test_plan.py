"""`undergrowth plan`: tables, JSON, a page, and the flags for fleets and deadlines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import undergrowth as ug
from tests.cli.conftest import last_json
from tests.data.loaders.test_idx import write
from tests.packed_pages import figures_of
from undergrowth.core import InputError
from undergrowth.report.tables import duration, size
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.outline import Outline, population_or_outline

KEYS = [
    "method", "device", "devices", "flops", "memory_bytes", "bytes_down", "bytes_up", "seconds", "joules", "verdict",
]  # fmt: skip
SMALL = (
    "--model", "logistic", "--clients", "10", "--fleet", "mixed-edge", "--method", "fedavg", "--method", "fedasync",
)  # fmt: skip


def test_tables_and_page(type_command) -> None:
    done = type_command("plan", *SMALL, "--deadline", "0.011", "-o", "plan.html")
    assert done.exit_code == 0, done.output
    for words in ("raspberry-pi-zero-2", "too slow", "fits", "together", "10 of 10", "a deadline of 11 ms"):
        assert words in done.stdout
    assert "\x1b" not in done.output
    text = Path("plan.html").read_text(encoding="utf-8")
    assert "Possible participants" in text
    assert "heatmap" in [trace["type"] for figure in figures_of(text).values() for trace in figure["data"]]
    assert type_command("plan", *SMALL, "-o", ".").exit_code == 2


@pytest.mark.parametrize("width", [80, 160])
def test_names_and_figures_are_whole_in_a_terminal_of_80_columns(type_command, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = type_command("plan", *SMALL, "--deadline", "0.011")
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines) <= width
    names = [line.split()[0] for line in lines if line.strip()]
    for row in ug.plan(["fedavg", "fedasync"], model="logistic", clients=10, fleet="mixed-edge", deadline=0.011):
        assert row["method"] in names
        line = next(line for line in lines if row["device"] in line)
        assert duration(row["seconds"]) in line and size(row["runtime_bytes"]) in line
    advice = " ".join(done.stdout.split())
    assert "Most devices can take part by the deadline with fedasync: 10 of 10 devices" in advice
    assert "A full battery lasts with fedavg: phone-mid" in advice and "The next class for fedavg is" in advice


def test_json(type_command) -> None:
    done = type_command("plan", *SMALL, "--deadline", "0.011", "--json")
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 1 and done.stderr == ""
    rows = last_json(done.stdout)
    assert all(list(row)[: len(KEYS)] == KEYS for row in rows)
    assert list(dict.fromkeys(row["method"] for row in rows)) == ["fedavg", "fedasync"]
    same = ug.plan(["fedavg", "fedasync"], model="logistic", clients=10, fleet="mixed-edge", deadline=0.011)
    assert rows == same


def test_json_of_a_tree_has_the_figures_of_its_servers(type_command) -> None:
    """In every row of their method, so that the list still has a row per method and class of devices."""
    common = {"model": "logistic", "clients": 10, "fleet": "mixed-edge"}
    done = type_command("plan", *SMALL, "--topology", "tree:2x5", "-s", "fleet.server_link=wan", "--json")
    rows = last_json(done.stdout)
    same = ug.plan(["fedavg", "fedasync"], topology="tree:2x5", server_link="wan", **common)
    assert rows == same and [*rows[0]][: len(KEYS)] == KEYS
    assert len(same) == len(ug.plan(["fedavg", "fedasync"], **common)) > 2
    for row in rows:
        assert row["tree"] == [level for level in same.tree if level["method"] == row["method"]]
        assert [(level["level"], level["servers"], level["link"]) for level in row["tree"]] == [
            (0, 1, "wan"), (1, 2, "of the devices"),
        ]  # fmt: skip
    assert all("tree" not in row for row in ug.plan("fedavg", **common))


def test_all_methods_by_default(type_command) -> None:
    Path("my.yaml").write_text("model: logistic\nmethod: {name: fedprox, mu: 0.5}\ndata: {clients: 3}\n")
    done = type_command("plan", "my.yaml", "--json")
    assert (
        "left out: fedmd, fedat, fedkad, reft, fedkd: public: the method needs data that the server holds"
        in done.stderr
    )
    methods = {row["method"] for row in last_json(done.stdout)}
    assert {"fedavg", "fedprox", "fedbuff", "local"} <= methods and not {"central", "fedmd"} & methods
    rows = last_json(type_command("plan", "my.yaml", "--method", "central", "--json").stdout)
    assert [row["devices"] for row in rows] == [1]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("{name: fedprox, mu: -1}", "method.mu -1.0 must be a finite number at least 0"),
        ("{name: fedfsc-plus, f_fs: 0.5}", "method.f_fs"),
    ],
)
def test_an_impossible_option_is_refused_instead_of_leaving_the_method_out(type_command, method, words) -> None:
    Path("my.yaml").write_text(f"model: logistic\nmethod: {method}\ndata: {{clients: 3}}\n")
    done = type_command("plan", "my.yaml", "--json")
    assert done.exit_code == 2 and words in done.stderr and not done.stdout


def test_methods_that_need_data_at_the_server(type_command) -> None:
    command = ("plan", "--model", "mlp", "--clients", "3", "--method", "fedmd", "--method", "fedkad", "--json")
    assert type_command(*command).exit_code == 2
    rows = last_json(type_command(*command, "-s", "public=0.1").stdout)
    assert {"fedmd", "fedkad"} == {row["method"] for row in rows}


def test_missing_data(type_command, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNDERGROWTH_DATA", str(tmp_path / "nothing"))
    done = type_command("plan", "--method", "fedavg", "--data", "cifar10", "--model", "logistic", "--json")
    assert done.exit_code == 0, done.output
    assert "'cifar10' is not on this machine" in done.stderr and "2250 samples on each of 20 devices" in done.stderr
    assert last_json(done.stdout)[0]["devices"] == 20
    for section in ({"partition": "dirichlet:x"}, {"subset": 3}, {"path": "nowhere"}):
        with pytest.raises(InputError):
            population_or_outline(parse_experiment({"data": {"name": "cifar10", **section}}))
    assert isinstance(population_or_outline(parse_experiment({"data": "cifar10"})), Outline)


def test_an_outline_hides_no_error_about_data_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERGROWTH_DATA", str(tmp_path))
    write(tmp_path / "mnist")
    for section in ({"clients": 70_000}, {"partition": "classes:50"}):
        with pytest.raises(InputError, match=r"clients|classes"):
            population_or_outline(parse_experiment({"data": {"name": "mnist", **section}}))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "fedprx"), "did you mean 'fedprox'?"),
        (("--fleet", "mixed-edg"), "did you mean 'mixed-edge'?"),
        (("--deadline", "-1"), "fleet.deadline"),
        (("-s", "data.partition=dirichlet:x"), "dirichlet:x"),
        (("--clients", "0"), "data.clients"),
    ],
)
def test_wrong_words(type_command, words: tuple[str, ...], message: str) -> None:
    done = type_command("plan", *words)
    assert done.exit_code == 2 and message in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


def test_the_run_agrees_with_the_plan(type_command) -> None:
    """The devices that fit in the plan arrive in the run; a deadline that no device can meet is rejected."""
    flags = ("--model", "logistic", "--clients", "10", "--fleet", "mixed-edge", "--method", "fedavg")
    rows = last_json(type_command("plan", *flags, "--deadline", "0.011", "--json").stdout)
    done = type_command("run", *flags, "--deadline", "0.011", "--rounds", "1", "--json")
    assert done.exit_code == 0, done.output
    history = last_json(type_command("show", "last", "--json").stdout)["history"]
    assert history[0]["arrived"] == sum(row["fitting"] for row in rows)
    done = type_command("run", *flags, "--deadline", "0.0001")
    assert done.exit_code == 2 and "undergrowth plan" in done.stderr


def test_devices_without_samples_are_noted(type_command) -> None:
    done = type_command("plan", *SMALL, "-s", "data.train_samples=30")
    assert done.exit_code == 0, done.output
    assert re.search(r"note: \d of 10 devices have no sample and take no part", done.stderr)

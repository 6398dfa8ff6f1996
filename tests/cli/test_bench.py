"""`undergrowth bench`: the list, the printed lines, and the exit code of a missed bar."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import last_json
from undergrowth import bench


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    good = bench.Measurement("a good one", "clients/s", 200.0, 100.0, 0.9)
    bad = bench.Measurement("a slow one", "seconds", 3.0, 2.0, 1.05, lower_is_better=True)
    table = {"good": ("what is good", lambda: iter([good])), "mixed": ("what is not", lambda: iter([good, bad]))}
    monkeypatch.setattr(bench, "BENCHMARKS", table)


def test_the_list(type_command) -> None:
    done = type_command("bench")
    assert done.exit_code == 0 and all(name in done.stdout for name in bench.BENCHMARKS)
    assert [row["benchmark"] for row in last_json(type_command("bench", "--json").stdout)] == list(bench.BENCHMARKS)
    done = type_command("bench", "clok")
    assert done.exit_code == 2 and "did you mean 'clock'?" in done.stderr


def test_bars_that_are_met(type_command, benchmarks) -> None:
    done = type_command("bench", "good")
    assert done.exit_code == 0, done.output
    for words in ("what is good", "a good one", "200", "100", "2.000", "at least 0.9", "met", "clients/s"):
        assert words in done.stdout


def test_a_bar_that_is_missed(type_command, benchmarks) -> None:
    done = type_command("bench", "mixed")
    assert done.exit_code == 3
    assert "a good one" in done.stdout and "at most 1.05" in done.stdout and "missed" in done.stdout
    assert done.stderr.splitlines() == ["missed 1 of 2 bars of bench mixed: a slow one"]
    done = type_command("bench", "mixed", "--json")
    assert done.exit_code == 3
    rows = last_json(done.stdout)
    assert [row["met"] for row in rows] == [True, False]
    assert list(rows[0]) == ["what", "ours", "reference", "unit", "ratio", "bar", "lower_is_better", "met"]


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Replaces `bench engines` by fixed lines; returns the options that it was called with."""
    asked: dict[str, object] = {}
    loop = bench.Row("cnn", "push loop by hand", 10.0, 200.0, 2.0, 1.5, 900.0, 4.1, against={"loop": (1.0, 1.0)})
    ours = bench.Row(
        "cnn", "undergrowth auto → processes", 13.0, 160.0, 3.0, 2.5, 800.0, 4.2, 1e-6, {"loop": (1.3, 0.8)}
    )
    bar = bench.Measurement("cnn, auto / loop", "CPU ms a client", 160.0, 200.0, 0.85, lower_is_better=True)

    def measure(**options: object):
        asked.update(options)
        return iter(["cnn 1/1: push loop by hand, 1.0 s", loop, ours, bar])

    monkeypatch.setitem(bench.BENCHMARKS, "engines", ("side by side", measure))
    return asked


def test_contenders_have_rows(type_command, contest) -> None:
    done = type_command("bench", "engines")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == ["cnn 1/1: push loop by hand, 1.0 s"]
    words = done.stdout.split()
    for word in ("clients/s", "13", "160", "3.0", "2.5", "800", "4.200", "1.0e-06", "1.30", "0.80", "0.800", "met"):
        assert word in words
    assert done.stdout.count("contender ") == 1 and contest == {}
    rows = json.loads(type_command("bench", "engines", "--json").stdout)
    assert rows[1]["cpu_ms_per_client"] == 160.0 and rows[1]["times"]["loop"]["cpu_ms_per_client"] == 0.8
    assert rows[0]["difference"] is None and rows[2]["met"] is True


def test_options_of_a_contest(type_command, contest) -> None:
    words = ("--workload", "wrn", "--device", "cuda", "--repeats", "5", "--with", "pfl=a/python", "--cohort", "4")
    assert type_command("bench", "engines", *words).exit_code == 0
    assert contest == {"workload": "wrn", "device": "cuda", "repeats": 5, "others": {"pfl": "a/python"}, "cohort": 4}
    done = type_command("bench", "clock", "--repeats", "5")
    assert done.exit_code == 2
    assert done.stderr == "error: --repeats goes with bench engines; bench clock has no options\n"
    done = type_command("bench", "engines", "--with", "flower")
    assert done.exit_code == 2 and "--with 'flower' must be NAME=PYTHON" in done.stderr


def test_options_that_are_not_known(type_command) -> None:
    done = type_command("bench", "engines", "--workload", "cnm")
    assert done.exit_code == 2 and done.stderr == "error: --workload 'cnm' is not known; did you mean 'cnn'?\n"
    done = type_command("bench", "engines", "--with", "flowr=python")
    assert done.exit_code == 2 and "did you mean 'flower'?" in done.stderr


@pytest.mark.slow
def test_a_small_contest(type_command, monkeypatch) -> None:
    """The loop by hand and the serial engine, really run."""
    from undergrowth.bench import engines

    def two(*words):
        return [each for each in cpu_contenders(*words) if each.name in ("loop", "serial")]

    cpu_contenders = engines.cpu_contenders
    monkeypatch.setattr(engines, "cpu_contenders", two)
    small = ("--workload", "logistic", "--devices", 6, "--cohort", 3, "--repeats", 1)
    done = type_command("bench", "engines", *small, "--json")
    assert done.exit_code == 0, done.output
    loop, ours = last_json(done.stdout)
    assert loop["contender"].startswith("push loop by hand") and ours["contender"] == "undergrowth serial"
    assert abs(loop["loss"] - ours["loss"]) < 0.02
    assert all(row["clients_per_second"] > 0 and row["peak_megabytes"] > 50 for row in (loop, ours))

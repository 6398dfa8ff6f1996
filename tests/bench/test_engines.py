"""`undergrowth bench engines`: all contenders train the same clients from the same weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from undergrowth.bench import Measurement, Row, engines, line_up
from undergrowth.bench.contender import Contender, Observation
from undergrowth.bench.engines import CONTESTS, compete, judge, judge_on_gpu, measure, measure_startup
from undergrowth.bench.line_up import OPPONENTS, cpu_contenders, find_opponents, gpu_contenders, missing_opponents
from undergrowth.bench.ours import nudge
from undergrowth.bench.protocol import LAST, ContestFolder
from undergrowth.bench.workload import Contest, load_weights
from undergrowth.core import InputError, RunError

TINY = {"devices": 6, "cohort": 3, "rounds": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Contest("logistic", **TINY).write(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["cnn", "logistic", "lstm"])
def test_opponents_train_the_same_network_on_the_same_samples(name: str, tmp_path: Path) -> None:
    contest = replace(CONTESTS[name], **TINY)
    contest.write(tmp_path)
    folder = ContestFolder(tmp_path)
    x, y = folder.samples(2)
    ours = contest.population.train("device-000002")
    assert torch.equal(x, ours.x) and torch.equal(y, ours.y)
    torch.testing.assert_close(folder.network()(x), contest.module()(contest.initial(), x))


def test_the_fixed_sizes_of_the_workloads() -> None:
    cnn, logistic = CONTESTS["cnn"], CONTESTS["logistic"]
    assert sum(value.numel() for value in cnn.initial().values()) == 1_690_046
    assert (cnn.devices, cnn.cohort, cnn.batch, cnn.lr) == (1000, 100, 20, 0.1)
    assert (logistic.devices, logistic.cohort, logistic.batch, logistic.lr) == (1000, 500, 20, 0.1)
    assert cnn.population.sizes.min() == 20 and cnn.population.sizes.max() == 500


@pytest.mark.slow
def test_all_contenders_train_the_same_clients_to_the_same_loss(folder: Path) -> None:
    """Our engines and the loop by hand, in one process and in two; on a GPU the same programs run."""
    contest = Contest("logistic", **TINY)
    on_all_cores = replace(cpu_contenders(str(folder), {})[0], name="push")
    rows: dict[str, Row] = {}
    models: list[dict[str, torch.Tensor]] = []
    for line in compete("tiny", contest, [on_all_cores, *gpu_contenders(str(folder), "cpu")], folder, 1, []):
        if isinstance(line, Row):
            rows[line.contender] = line
        else:  # a contender has finished and written its model
            models.append(dict(load_weights(folder / LAST, contest.initial())))
    push, plain, serial, *vector = rows
    assert push.startswith("push loop by hand") and (plain, serial) == ("plain PyTorch loop", "undergrowth serial")
    assert vector[:2] == ["undergrowth vector precision=float32", "undergrowth vector precision=tf32"]
    losses = [row.loss for row in rows.values()]
    assert max(losses) - min(losses) < 0.02 < contest.loss(contest.initial()) - max(losses)
    assert rows["undergrowth vector precision=float32"].difference < 1e-5
    assert all(row.speed > 0 and row.startup > 0 and row.memory > 50 for row in rows.values())
    (against,) = rows["plain PyTorch loop"].against.values()  # its CPU time may be below the clock's resolution
    assert against[0] == 1
    torch.testing.assert_close(models[0], models[1])  # the loop by hand in two processes and in one


def test_a_contender_that_fails_or_does_other_work_has_no_row_and_no_second_run(monkeypatch) -> None:
    turns: list[str] = []

    def fake(contender: Contender) -> Observation:
        turns.append(contender.name)
        folder = ContestFolder(contender.command[0])
        if contender.name == "broken":
            raise RunError("broken ended with code 1: no memory")
        (folder.path / LAST).write_bytes((folder.path / "weights.npz").read_bytes())
        work = {"clients": 5, "samples": 100} if contender.name == "lazy" else folder.work
        return Observation(contender.name, **work, startup=1.0, startup_cpu=1.0, seconds=1.0, cpu=1.0, memory=1e6)

    names = ["broken", "lazy", "loop"]
    monkeypatch.setattr(engines, "observe", fake)
    monkeypatch.setattr(engines, "cpu_contenders", lambda folder, found: [Contender(name, [folder]) for name in names])
    lines: list[object] = []
    with pytest.raises(RunError, match=r"^logistic: broken ended.*; logistic: lazy did \{'clients': 5,"):
        lines.extend(measure("logistic", repeats=2, devices=6, cohort=3))
    assert turns == [*names, "loop"]
    assert [line.contender for line in lines if isinstance(line, Row)] == ["loop"]


def test_opponents_that_are_installed_or_named() -> None:
    here = {name for name, package in OPPONENTS.items() if find_spec(package)}
    assert set(find_opponents({})) == here
    assert find_opponents({"flower": sys.executable})["flower"] == sys.executable
    with pytest.raises(InputError, match="flower='/there/python' is not a program that can be started"):
        find_opponents({"flower": "/there/python"})
    with pytest.raises(InputError, match="--with 'flowr' is not an opponent; did you mean 'flower'"):
        find_opponents({"flowr": "python"})
    commands = {each.name: each.command for each in cpu_contenders("folder", {"pfl": "a/python", "flower": "b/python"})}
    assert commands["pfl"][0] == "a/python" and commands["pfl"][-2:] == ["opponents.pfl", "folder"]
    for name, module in (("flower", "flower"), ("flower-numpy", "flower_numpy")):
        assert commands[name] == ["b/python", "-m", f"opponents.{module}", "folder"]
    assert "pfl" not in {each.name for each in cpu_contenders("folder", {})}


@pytest.mark.slow
@pytest.mark.parametrize(("opponent", "name"), [("flower", "flower"), ("flower", "flower-numpy"), ("pfl", "pfl")])
def test_an_opponent_trains_the_same_thing(opponent: str, name: str, folder: Path) -> None:
    if not find_spec(OPPONENTS[opponent]):
        pytest.skip(f"{opponent} is not installed")
    contest = Contest("logistic", **TINY)
    chosen = [each for each in cpu_contenders(str(folder), {opponent: sys.executable}) if each.name in ("loop", name)]
    loop, theirs = [line for line in compete("tiny", contest, chosen, folder, 1, []) if isinstance(line, Row)]
    assert abs(loop.loss - theirs.loss) < 0.02 < contest.loss(contest.initial()) - theirs.loss


@pytest.mark.slow
def test_the_start_of_a_run_is_measured(folder: Path) -> None:
    measured = measure_startup(folder)
    assert measured.what == "undergrowth run, 6 devices"
    assert measured.ours > 0 and measured.reference == 6.0
    (folder / "synthetic.npz").unlink()
    (folder / "y.npy").write_bytes((folder / "x.npy").read_bytes())
    with pytest.raises(RunError, match="undergrowth run ended with code 2: error: "):
        measure_startup(folder)


def row(speed: float, cpu: float, memory: float) -> Row:
    return Row("logistic", "", speed, cpu, 2.0, 1.0, memory, 3.0)


def test_bars_are_for_contenders_that_took_part() -> None:
    rows = {"loop": row(100, 10, 500), "pfl": row(100, 10, 900), "auto": row(350, 3, 500)}
    found = list(judge("logistic", rows))
    assert [(each.what[-4:], each.ratio, each.met) for each in found] == [
        ("loop", 3.5, True), (" pfl", 3.5, False), ("loop", 1.0, True),
    ]  # fmt: skip
    found = list(judge("cnn", {**rows, "auto": row(350, 8.6, 500.1)}))
    assert [(each.unit, each.met) for each in found] == [
        ("CPU ms a client", False), ("clients a second", True), ("peak MB", False),
    ]  # fmt: skip


def test_bars_of_a_gpu() -> None:
    fast, strict = "vector precision=tf32", "vector precision=float32"
    rows = {"loop": row(100, 10, 500), fast: row(2600, 1, 500), strict: replace(row(900, 1, 500), difference=2e-4)}
    found = [(each.ratio, each.met) for each in judge_on_gpu("cnn", rows)]
    assert found == [(26.0, True), (pytest.approx(1.04), True), (pytest.approx(2.0), False)]
    assert [each.met for each in judge_on_gpu("wrn", {**rows, fast: row(700, 1, 500)})] == [False]
    assert not list(judge_on_gpu("cnn", {"loop": rows["loop"]}))


def test_contenders_alternate_the_median_counts_and_only_the_fixed_size_has_bars(monkeypatch) -> None:
    order: list[str] = []

    def fake(contender: Contender) -> Observation:
        seconds = (1.0, 2.0, 9.0)[order.count(contender.name) % 3]
        order.append(contender.name)
        folder = ContestFolder(contender.command[-1])
        (folder.path / LAST).write_bytes((folder.path / "weights.npz").read_bytes())
        return Observation(
            contender.name, **folder.work, startup=1.0, startup_cpu=1.0, seconds=seconds, cpu=seconds, memory=1e6
        )

    names = ["loop", "serial", "auto"]
    monkeypatch.setattr(engines, "observe", fake)
    monkeypatch.setattr(engines, "cpu_contenders", lambda folder, found: [Contender(name, [folder]) for name in names])
    monkeypatch.setitem(CONTESTS, "logistic", Contest("logistic", **TINY))
    lines = list(measure("logistic"))
    assert order == names * 3
    assert [line.speed for line in lines if isinstance(line, Row)] == [1.5, 1.5, 1.5]
    assert {line.what for line in lines if isinstance(line, Measurement)} == {
        "logistic, auto / best engine",
        "logistic, auto / loop",
    }
    assert not [line for line in measure("logistic", cohort=2) if isinstance(line, Measurement)]


def test_auto_is_compared_with_the_best_engine() -> None:
    rows = {"serial": row(100, 10, 500), "vector": row(200, 5, 500), "auto": row(180, 5, 500)}
    (found,) = judge("mlp", rows)
    assert (found.what, found.ratio, found.bar, found.met) == ("mlp, auto / best engine", 0.9, 0.85, True)
    (found,) = judge("mlp", {**rows, "processes stack=true": row(250, 5, 500)})
    assert found.ratio == 0.72 and not found.met
    on_gpu = {"vector precision=float32": rows["vector"], "vector precision=tf32": row(900, 1, 500), **rows}
    (found,) = judge_on_gpu("lstm", on_gpu)
    assert found.ratio == 0.9
    assert not list(judge("mlp", {"auto": rows["auto"]}))


def test_without_a_checkout_only_our_engines_are_compared(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(line_up, "OPPONENTS_FOLDER", tmp_path / "no such folder")
    assert find_opponents({}) == {}
    (sentence,) = missing_opponents({}, on_cpu=True)
    assert sentence.startswith("opponents come with the repository")
    assert [each.name for each in cpu_contenders("folder", {})] == [*line_up.ENGINES, "auto"]
    with pytest.raises(InputError, match="--with flower: opponents come with the repository"):
        find_opponents({"flower": sys.executable})


def test_a_nudge_changes_the_last_digits_of_weights_both_ways_and_the_same_each_time() -> None:
    before = CONTESTS["logistic"].initial()
    after, again = nudge(before), nudge(before)
    for name, value in before.items():
        assert torch.equal(after[name], again[name])
        assert (after[name] > value).any() and (after[name] < value).any()
        torch.testing.assert_close(after[name], value, rtol=2**-21, atol=0)

"""`undergrowth bench engines`: our engines beside a loop by hand, Flower and pfl-research, on the same clients.

Every contender is a separate program that does the same rounds with the same clients from the same weights. Contenders
take turns (A B C A B C), and the median of each counts. CPU time a client is hardly affected by other programs on the
machine; clients a second are valid on a quiet machine only. On a GPU the loop by hand trains one client after the
other, with torch's default precision (TF32 in convolutions).

The bars hold for the engine `auto` at the sizes that are fixed here; those against opponents on two cores.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

from undergrowth.bench import Measurement, Row
from undergrowth.bench.contender import Contender, Observation, observe
from undergrowth.bench.line_up import (
    ENGINES,
    GPU_ENGINES,
    LOOP,
    cpu_contenders,
    find_opponents,
    gpu_contenders,
    missing_opponents,
)
from undergrowth.bench.ours import FIRST, NUDGED
from undergrowth.bench.protocol import LAST, ContestFolder
from undergrowth.bench.workload import Contest, load_weights
from undergrowth.core import InputError, RunError, Weights, suggest
from undergrowth.runs.engine_builder import check_torch_device

CONTESTS = {
    "cnn": Contest("cnn", cohort=100, rounds=1),
    "logistic": Contest("logistic", cohort=500, rounds=4),
    "mlp": Contest("mlp", cohort=200, rounds=4),
    "lstm": Contest("lstm", cohort=10, rounds=1, devices=100, shape=(40,), classes=80, vocabulary=80),
    "wrn": Contest("wrn-16-1", cohort=10, rounds=1, devices=100, batch=64, shape=(3, 32, 32), classes=10),
}
GPU_COHORTS = {"cnn": 100, "wrn": 100, "mlp": 200, "lstm": 10}
REFERENCES = (LOOP, "flower", "flower-numpy", "pfl")  # contenders that all others are compared with
BARS: dict[str, list[tuple[str, str, float]]] = {  # (reference, figure, bar)
    "cnn": [(LOOP, "cpu", 0.85), ("pfl", "speed", 1.15), ("flower", "speed", 2.8), (LOOP, "memory", 1.0)],
    "logistic": [(LOOP, "speed", 3.0), ("pfl", "speed", 4.0), ("flower", "speed", 40.0), (LOOP, "memory", 1.0)],
}
GPU_BARS = {"cnn": (25.0, 2500.0), "wrn": (8.0, None)}  # times the loop's speed, and clients a second
BEST_ENGINE_BAR = 0.85  # speed of `auto` over that of the best engine
MAX_DIFFERENCE = 1e-4  # of the averaged model, relative to its length, in strict float32
UNITS = {"speed": "clients a second", "cpu": "CPU ms a client", "memory": "peak MB"}
MAX_STARTUP = 6.0  # seconds


def measure(
    workload: str | None = None,
    device: str = "cpu",
    others: Mapping[str, str] | None = None,
    repeats: int = 3,
    devices: int | None = None,
    cohort: int | None = None,
) -> Iterator[Measurement | Row | str]:
    """Rows of all contenders, then bars. `others`: opponent → the Python that has it.

    With `devices` or `cohort` the size differs from the fixed one and there are no bars. A contender that fails has no
    row; a RunError at the end names it.
    """
    if workload is not None and workload not in CONTESTS:
        raise InputError(f"--workload '{workload}' is not known; {suggest(workload, CONTESTS)}")
    on_cpu = check_torch_device(device) == "cpu"
    found = find_opponents(others or {})
    failures: list[str] = []
    yield from missing_opponents(found, on_cpu)
    for name in [workload] if workload else CONTESTS if on_cpu else GPU_COHORTS:
        fixed = CONTESTS[name]
        if not on_cpu:  # rounds are short on a GPU, and the vector engine records its steps in the first rounds
            fixed = replace(fixed, rounds=10, warm=6, cohort=GPU_COHORTS.get(name, fixed.cohort))
        contest = replace(fixed, devices=devices or fixed.devices, cohort=cohort or fixed.cohort)
        contest = replace(contest, cohort=min(contest.cohort, contest.devices))
        with tempfile.TemporaryDirectory() as folder:
            contest.write(Path(folder))
            opponents = found if name in BARS else {}
            contenders = cpu_contenders(folder, opponents) if on_cpu else gpu_contenders(folder, device)
            rows = yield from compete(name, contest, contenders, Path(folder), repeats, failures)
            if contest == fixed:
                yield from judge(name, rows) if on_cpu else judge_on_gpu(name, rows)
                if on_cpu and name == "cnn":
                    yield measure_startup(Path(folder))
    if failures:
        raise RunError("; ".join(failures))


def compete(
    name: str, contest: Contest, contenders: list[Contender], folder: Path, repeats: int, failures: list[str]
) -> Generator[Measurement | Row | str, None, dict[str, Row]]:
    """Runs the contenders in turns. Yields a line of text after each run, and all rows at the end.

    A contender that fails or does other work is dropped, and `failures` gets the reason.
    """
    expected = ContestFolder(folder).work
    start = contest.initial()
    observations: dict[str, list[Observation]] = {contender.name: [] for contender in contenders}
    losses: dict[str, float] = {}
    firsts: dict[str, Weights] = {}
    for number in range(repeats):
        for contender in contenders:
            if contender.name not in observations:
                continue
            for file in (FIRST, LAST):
                (folder / file).unlink(missing_ok=True)
            try:
                one = observe(contender)
                done = {"clients": one.clients, "samples": one.samples}
                if done != expected:
                    raise RunError(f"{one.title} did {done}, where the workload is {expected}")
            except RunError as error:
                del observations[contender.name]
                failures.append(f"{name}: {error}")
                yield failures[-1]
                continue
            observations[contender.name].append(one)
            losses[contender.name] = contest.loss(load_weights(folder / LAST, start))
            if (folder / FIRST).exists():
                firsts[contender.name] = load_weights(folder / FIRST, start)
            yield f"{name} {number + 1}/{repeats}: {one.title}, {one.seconds:.1f} s"
    yield (
        f"{name}: rounds of {contest.cohort} clients, {contest.warm} to warm up and {contest.rounds} that count, "
        f"{expected['samples']} samples in all; loss before {contest.loss(start):.3f}; load {os.getloadavg()[0]:.1f}"
    )
    rows = {
        each: _row(name, contest, ones, losses[each], _difference(firsts.get(each), firsts.get(_twin(each))))
        for each, ones in observations.items()
    }
    references = {other: rows[other] for other in REFERENCES if other in rows}
    for row in rows.values():
        yield replace(row, against={other: row.times(theirs) for other, theirs in references.items()})
    return rows


def _row(name: str, contest: Contest, ones: Sequence[Observation], loss: float, difference: float | None) -> Row:
    return Row(
        workload=name,
        contender=ones[-1].title,
        speed=statistics.median(contest.clients / one.seconds for one in ones),
        cpu=statistics.median(1e3 * one.cpu / contest.clients for one in ones),
        startup=statistics.median(one.startup for one in ones),
        startup_cpu=statistics.median(one.startup_cpu for one in ones),
        memory=statistics.median(one.memory / 1e6 for one in ones),
        loss=loss,
        difference=difference,
    )


def judge(name: str, rows: Mapping[str, Row]) -> Iterator[Measurement]:
    """`auto` against the best engine and against the opponents that took part."""
    yield from _against_best_engine(name, rows, ENGINES)
    for reference, figure, bar in BARS.get(name, ()):
        if {reference, "auto"} <= rows.keys():
            ours, theirs = (float(getattr(rows[each], figure)) for each in ("auto", reference))
            yield Measurement(f"{name}, auto / {reference}", UNITS[figure], ours, theirs, bar, figure != "speed")


def judge_on_gpu(name: str, rows: Mapping[str, Row]) -> Iterator[Measurement]:
    """`auto` against the best engine, `vector` in TF32 against the loop, and `vector` in float32 against `serial`."""
    yield from _against_best_engine(name, rows, GPU_ENGINES)
    fast, strict = (f"vector precision={precision}" for precision in ("tf32", "float32"))
    if name not in GPU_BARS or not {LOOP, fast, strict} <= rows.keys():
        return
    times, least = GPU_BARS[name]
    yield Measurement(f"{name}, vector in TF32 / {LOOP}", UNITS["speed"], rows[fast].speed, rows[LOOP].speed, times)
    if least is not None:
        yield Measurement(f"{name}, vector in TF32", f"{UNITS['speed']}, against the bar", rows[fast].speed, least, 1.0)
        difference = rows[strict].difference
        if difference is not None:
            what, unit = f"{name}, vector / serial", "difference in float32, against the bar"
            yield Measurement(what, unit, difference, MAX_DIFFERENCE, 1.0, True)


def _against_best_engine(name: str, rows: Mapping[str, Row], engines: Sequence[str]) -> Iterator[Measurement]:
    speeds = [rows[engine].speed for engine in engines if engine in rows]
    if speeds and "auto" in rows:
        what = f"{name}, auto / best engine"
        yield Measurement(what, UNITS["speed"], rows["auto"].speed, max(speeds), BEST_ENGINE_BAR)


def measure_startup(folder: Path) -> Measurement:
    """Seconds of `undergrowth run` on these devices, from a file, until it locks its folder for the first round."""
    contest = ContestFolder(folder)
    x, y = contest.arrays
    devices = np.repeat(np.arange(contest.devices), np.diff(contest.starts))
    np.savez(folder / "synthetic.npz", x=x, y=y, device=devices, x_test=x[:500], y_test=y[:500])
    out = Path(tempfile.mkdtemp(dir=folder))
    settings = {"data.path": folder / "synthetic.npz", "data.partition": "natural:device", "run.out": out}
    command = [sys.executable, "-m", "undergrowth", "run", "--data", "npz", "--model", contest.model]
    command += [f"-s{path}={value}" for path, value in settings.items()]
    began = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not any(out.glob("*/lock")):
            sleep(0.01)
        seconds = perf_counter() - began
        if process.poll() is not None:
            assert process.stderr is not None
            raise RunError(f"undergrowth run ended with code {process.returncode}: {process.stderr.read().strip()}")
        process.terminate()
    what = f"undergrowth run, {contest.devices} devices"
    return Measurement(what, "seconds to the first round, against the bar", seconds, MAX_STARTUP, 1.0, True)


def _twin(name: str) -> str:
    """The contender whose model this one's is compared with: `serial`, or the same engine without the nudge."""
    return name.removesuffix(f" {NUDGED}") if name.endswith(NUDGED) else "serial"


def _difference(ours: Weights | None, twin: Weights | None) -> float | None:
    """Distance between two averaged models after the first round, relative to the length of the second."""
    if ours is None or twin is None or ours is twin:
        return None
    distance = sum(float((ours[name].double() - value.double()).square().sum()) for name, value in twin.items())
    return math.sqrt(distance / sum(float(value.double().square().sum()) for value in twin.values()))

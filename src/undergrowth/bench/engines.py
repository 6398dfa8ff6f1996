"""`undergrowth bench engines`: our engines beside a loop by hand, Flower and pfl-research, on the same clients.

Every contender is a program of its own that does the same rounds with the same clients from the same weights; they
take turns (A B C A B C), and the median of each counts. The figure that a busy machine cannot spoil is CPU time a
client; clients a second are those of a quiet machine only. On a GPU the loop by hand does one client after the other,
with torch's own default precision (TF32 in convolutions).

The bars are for what the engine `auto` gives, on two cores, at the size of the workload that is fixed here.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from typing import get_args

import numpy as np

from undergrowth.bench import Measurement, Row
from undergrowth.bench.contender import Contender, Seen, watched
from undergrowth.bench.opponents.given import LAST, Given
from undergrowth.bench.ours import FIRST, NUDGED
from undergrowth.bench.workload import Contest, load_weights
from undergrowth.core import InputError, RunError, Weights, nearest
from undergrowth.engines.processes.engine import cores
from undergrowth.runs.builders import check_torch_device
from undergrowth.runs.config import RunSection

CONTESTS = {
    "cnn": Contest("cnn", cohort=100, rounds=1),
    "logistic": Contest("logistic", cohort=500, rounds=4),
    "wrn": Contest("wrn-16-1", cohort=100, rounds=2, devices=100, batch=64, shape=(3, 32, 32), classes=10),
}
OPPONENTS = {"flower": "flwr", "pfl": "pfl"}  # name → the package that must be there
LOOP = "loop"
REFERENCES = (LOOP, "flower", "flower-numpy", "pfl")  # contenders whom all others are compared with
BARS: dict[str, list[tuple[str, str, float]]] = {  # against whom, in what, how many times
    "cnn": [(LOOP, "cpu", 0.85), ("pfl", "speed", 1.15), ("flower", "speed", 2.8), (LOOP, "memory", 1.0)],
    "logistic": [(LOOP, "speed", 3.0), ("pfl", "speed", 4.0), ("flower", "speed", 40.0), (LOOP, "memory", 1.0)],
}
GPU_BARS = {"cnn": (25.0, 2500.0), "wrn": (8.0, None)}  # times the loop's clients a second, and how many these must be
EQUAL = 1e-4  # of the averaged model's length, in strict float32
UNITS = {"speed": "clients a second", "cpu": "CPU ms a client", "memory": "peak MB"}
STARTUP = 6.0  # seconds


def measure(
    workload: str | None = None,
    device: str = "cpu",
    others: Mapping[str, str] | None = None,
    repeats: int = 3,
    devices: int | None = None,
    cohort: int | None = None,
) -> Iterator[Measurement | Row | str]:
    """`others`: opponent → the Python that has it. With `devices` or `cohort` the size is another, and no bar holds.

    Who fails is left out, so that the others are not lost, and told at the end with a RunError.
    """
    if workload is not None and workload not in CONTESTS:
        raise InputError(f"--workload '{workload}' is not known; {nearest(workload, CONTESTS)}")
    on_cpu = check_torch_device(device) == "cpu"
    found = opponents(others or {})
    failures: list[str] = []
    for name in OPPONENTS if on_cpu else ():
        if name not in found:
            yield f"{name} is not installed here; --with {name}=PYTHON names an environment that has it"
    names = [workload] if workload else ["cnn", "logistic"] if on_cpu else ["cnn", "wrn"]
    for name in names:
        fixed = CONTESTS[name]
        contest = replace(fixed, devices=devices or fixed.devices, cohort=cohort or fixed.cohort)
        contest = replace(contest, cohort=min(contest.cohort, contest.devices))
        if not on_cpu:  # rounds are short there, and the vector engine records its steps in the first ones
            contest = replace(contest, rounds=10, warm=6)
        with tempfile.TemporaryDirectory() as folder:
            contest.write(Path(folder))
            contenders = on_cores(folder, {} if name == "wrn" else found) if on_cpu else on_a_gpu(folder, device)
            rows = yield from compete(name, contest, contenders, Path(folder), repeats, failures)
            if not on_cpu and contest.cohort == fixed.cohort:
                yield from judged_on_a_gpu(name, rows)
            if contest == fixed and on_cpu:
                yield from judged(name, rows)
                if name == "cnn":
                    yield startup(Path(folder))
    if failures:
        raise RunError("; ".join(failures))


def on_cores(folder: str, found: Mapping[str, str]) -> list[Contender]:
    """The loop by hand on all cores, our engines, and the opponents that are there."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(cores()), "-m"]
    programs = {  # opponent → what it competes as, and how that is started
        "flower": {"flower": ["-m", "opponents.flower"], "flower-numpy": ["-m", "opponents.flower_numpy"]},
        "pfl": {"pfl": ["-m", *launcher, "opponents.pfl"]},
    }
    return [
        _opponent(LOOP, sys.executable, ["-m", "opponents.by_hand"], folder, str(cores()), "cpu"),
        *(
            _opponent(name, python, command, folder)
            for opponent, python in found.items()
            for name, command in programs[opponent].items()
        ),
        _ours(folder, "serial"),
        _ours(folder, "vector"),
        _ours(folder, "processes"),
        _ours(folder, "processes", "stack=true"),
        _ours(folder, "auto"),
    ]


def on_a_gpu(folder: str, device: str) -> list[Contender]:
    """The loop by hand and our engines, each in one process, the vector engine in every precision that it has.

    One more run starts from weights that differ in the last digit: how far that carries is as near as engines can be.
    """
    precisions = get_args(RunSection.model_fields["precision"].annotation)
    return [
        _opponent(LOOP, sys.executable, ["-m", "opponents.by_hand"], folder, "0", device),
        _ours(folder, "serial", f"device={device}"),
        *(_ours(folder, "vector", f"device={device}", f"precision={precision}") for precision in precisions),
        _ours(folder, "vector", f"device={device}", "precision=float32", NUDGED),
    ]


def opponents(others: Mapping[str, str]) -> dict[str, str]:
    """Who is there, and which Python has it: the one that was named, or ours."""
    for name, python in others.items():
        if name not in OPPONENTS:
            raise InputError(f"--with '{name}' is not an opponent; {nearest(name, OPPONENTS)}")
        if shutil.which(python) is None:
            raise InputError(f"--with {name}='{python}' is not a program that can be started, such as there/bin/python")
    here = {name: sys.executable for name, package in OPPONENTS.items() if find_spec(package)}
    return {**here, **others}


def compete(
    name: str,
    contest: Contest,
    contenders: list[Contender],
    folder: Path,
    repeats: int,
    failures: list[str],
) -> Generator[Measurement | Row | str, None, dict[str, Row]]:
    """All contenders in turns. Their rows come when all are through; until then, what has just been done.

    Who does not do the work has no more turns and no row; why is added to the failures.
    """
    expected = Given(folder).work
    start = contest.initial()
    seen: dict[str, list[Seen]] = {contender.name: [] for contender in contenders}
    losses: dict[str, float] = {}
    firsts: dict[str, Weights] = {}
    for number in range(repeats):
        for contender in contenders:
            if contender.name not in seen:
                continue
            for file in (FIRST, LAST):
                (folder / file).unlink(missing_ok=True)
            try:
                one = watched(contender)
                done = {"clients": one.clients, "samples": one.samples}
                if done != expected:
                    raise RunError(f"{one.title} did {done}, where the workload is {expected}")
            except RunError as error:
                del seen[contender.name]
                failures.append(f"{name}: {error}")
                yield failures[-1]
                continue
            seen[contender.name].append(one)
            losses[contender.name] = contest.loss(load_weights(folder / LAST, start))
            if (folder / FIRST).exists():
                firsts[contender.name] = load_weights(folder / FIRST, start)
            yield f"{name} {number + 1}/{repeats}: {one.title}, {one.seconds:.1f} s"
    yield (
        f"{name}: rounds of {contest.cohort} clients, {contest.warm} to warm up and {contest.rounds} that count, "
        f"{expected['samples']} samples in all; loss before {contest.loss(start):.3f}; load {os.getloadavg()[0]:.1f}"
    )
    rows = {
        each: Row(
            workload=name,
            contender=" | ".join(dict.fromkeys(one.title for one in ones)),  # `auto` may choose otherwise each time
            speed=statistics.median(contest.clients / one.seconds for one in ones),
            cpu=statistics.median(1e3 * one.cpu / contest.clients for one in ones),
            startup=statistics.median(one.startup for one in ones),
            startup_cpu=statistics.median(one.startup_cpu for one in ones),
            memory=statistics.median(one.memory / 1e6 for one in ones),
            loss=losses[each],
            difference=_difference(firsts.get(each), firsts.get(_twin(each))),
        )
        for each, ones in seen.items()
    }
    references = {other: rows[other] for other in REFERENCES if other in rows}
    for row in rows.values():
        yield replace(row, against={other: row.times(theirs) for other, theirs in references.items()})
    return rows


def judged(name: str, rows: Mapping[str, Row]) -> Iterator[Measurement]:
    """What the engine `auto` gives, against the bars; where an opponent is not there, nothing is said."""
    for against, what, bar in BARS.get(name, ()):
        if {against, "auto"} <= rows.keys():
            ours, theirs = (float(getattr(rows[each], what)) for each in ("auto", against))
            yield Measurement(f"{name}, auto / {against}", UNITS[what], ours, theirs, bar, what != "speed")


def judged_on_a_gpu(name: str, rows: Mapping[str, Row]) -> Iterator[Measurement]:
    """What the engine `vector` gives in TF32, and how near it is to the serial engine in float32."""
    fast, strict = (f"vector precision={precision}" for precision in ("tf32", "float32"))
    if name not in GPU_BARS or not {LOOP, fast, strict} <= rows.keys():
        return
    times, least = GPU_BARS[name]
    yield Measurement(f"{name}, vector in TF32 / {LOOP}", UNITS["speed"], rows[fast].speed, rows[LOOP].speed, times)
    if least is not None:
        yield Measurement(f"{name}, vector in TF32", f"{UNITS['speed']}, against the bar", rows[fast].speed, least, 1.0)
        apart = rows[strict].difference
        if apart is not None:
            yield Measurement(f"{name}, vector / serial", "apart in float32, against the bar", apart, EQUAL, 1.0, True)


def startup(folder: Path) -> Measurement:
    """Of `undergrowth run` with these devices from a file, until it takes hold of its folder to do the first round."""
    given = Given(folder)
    x, y = given.arrays
    devices = np.repeat(np.arange(given.devices), np.diff(given.starts))
    np.savez(folder / "writers.npz", x=x, y=y, device=devices, x_test=x[:500], y_test=y[:500])
    out = Path(tempfile.mkdtemp(dir=folder))
    settings = {"data.path": folder / "writers.npz", "data.partition": "natural:device", "run.out": out}
    command = [sys.executable, "-m", "undergrowth.cli", "run", "--data", "npz", "--model", given.model]
    command += [f"-s{path}={value}" for path, value in settings.items()]
    fresh = {**os.environ, "XDG_CACHE_HOME": str(out)}  # nothing has been timed there yet
    began = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=fresh) as process:
        while process.poll() is None and not any(out.glob("*/lock")):
            sleep(0.01)
        seconds = perf_counter() - began
        if process.poll() is not None:
            assert process.stderr is not None
            raise RunError(f"undergrowth run ended with code {process.returncode}: {process.stderr.read().strip()}")
        process.terminate()
    what = f"undergrowth run, {given.devices} devices"
    return Measurement(what, "seconds to the first round, against the bar", seconds, STARTUP, 1.0, True)


def _ours(folder: str, engine: str, *settings: str) -> Contender:
    name = " ".join([engine, *(setting for setting in settings if not setting.startswith("device="))])
    command = [sys.executable, "-m", "undergrowth.bench.ours", folder, engine, *settings]
    return Contender(name, command, {"XDG_CACHE_HOME": folder})  # what `auto` times is remembered for this contest only


def _opponent(name: str, python: str, command: Sequence[str], folder: str, *words: str) -> Contender:
    # What our own Python was told to look through is for no other.
    path = os.environ.get("PYTHONPATH", "") if python == sys.executable else ""
    here = os.pathsep.join(filter(None, [str(Path(__file__).parent), path]))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return Contender(name, [python, *command, folder, *words], {**quiet, "PYTHONPATH": here})


def _twin(name: str) -> str:
    """With whom a contender's model is compared: the serial engine, or the same from weights that were not nudged."""
    return name.removesuffix(f" {NUDGED}") if name.endswith(NUDGED) else "serial"


def _difference(ours: Weights | None, twin: Weights | None) -> float | None:
    """Of the averaged model from that of another one after the first round, in lengths of that model."""
    if ours is None or twin is None or ours is twin:
        return None
    apart = sum(float((ours[name].double() - value.double()).square().sum()) for name, value in twin.items())
    return math.sqrt(apart / sum(float(value.double().square().sum()) for value in twin.values()))

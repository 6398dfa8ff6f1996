"""The programs that take part in `undergrowth bench engines`: a loop by hand, other frameworks, our engines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from undergrowth.bench.contender import Contender
from undergrowth.bench.ours import NUDGED
from undergrowth.core import InputError, suggest
from undergrowth.engines.processes.engine import cores
from undergrowth.runs.config import RunSection

OPPONENTS = {"flower": "flwr", "pfl": "pfl"}  # name → the package that it needs
OPPONENTS_FOLDER = Path(__file__).parents[3] / "benchmarks" / "opponents"  # in a checkout; not in the wheel
LOOP = "loop"
ENGINES = ("serial", "vector", "processes", "processes stack=true")
GPU_ENGINES = ("serial", "vector precision=float32")


def cpu_contenders(folder: str, found: Mapping[str, str]) -> list[Contender]:
    """The loop by hand on all cores, the opponents that were found, and our engines."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(cores()), "-m"]
    programs = {  # opponent → its contenders and how each is started
        "flower": {"flower": ["-m", "opponents.flower"], "flower-numpy": ["-m", "opponents.flower_numpy"]},
        "pfl": {"pfl": ["-m", *launcher, "opponents.pfl"]},
    }
    return [
        *_loop_by_hand(folder, str(cores()), "cpu"),
        *(
            _opponent(name, python, command, folder)
            for opponent, python in found.items()
            for name, command in programs[opponent].items()
        ),
        *(_ours(folder, *engine.split()) for engine in (*ENGINES, "auto")),
    ]


def gpu_contenders(folder: str, device: str) -> list[Contender]:
    """The loop by hand and our engines, each in one process; the vector engine in every precision.

    One more run starts from weights that differ in the last digit. Its difference is the smallest that engines can
    be expected to have.
    """
    precisions = get_args(RunSection.model_fields["precision"].annotation)
    return [
        *_loop_by_hand(folder, "0", device),
        _ours(folder, "serial", f"device={device}"),
        *(_ours(folder, "vector", f"device={device}", f"precision={precision}") for precision in precisions),
        _ours(folder, "vector", f"device={device}", "precision=float32", NUDGED),
        _ours(folder, "auto", f"device={device}"),
    ]


def find_opponents(others: Mapping[str, str]) -> dict[str, str]:
    """The opponents that can run, and the Python that has each: the one that the user named, or ours."""
    for name, python in others.items():
        if name not in OPPONENTS:
            raise InputError(f"--with '{name}' is not an opponent; {suggest(name, OPPONENTS)}")
        if shutil.which(python) is None:
            raise InputError(f"--with {name}='{python}' is not a program that can be started, such as there/bin/python")
        if not OPPONENTS_FOLDER.is_dir():
            raise InputError(f"--with {name}: opponents come with the repository; run bench engines from a checkout")
    if not OPPONENTS_FOLDER.is_dir():
        return {}
    installed = {name: sys.executable for name, package in OPPONENTS.items() if find_spec(package)}
    return {**installed, **others}


def missing_opponents(found: Mapping[str, str], on_cpu: bool) -> Iterator[str]:
    """A sentence for each opponent that does not take part."""
    if not OPPONENTS_FOLDER.is_dir():
        yield "opponents come with the repository: in a checkout, the engines are compared with them too"
        return
    for name in OPPONENTS if on_cpu else ():
        if name not in found:
            yield f"{name} is not installed here; --with {name}=PYTHON names an environment that has it"


def _ours(folder: str, engine: str, *settings: str) -> Contender:
    name = " ".join([engine, *(setting for setting in settings if not setting.startswith("device="))])
    return Contender(name, [sys.executable, "-m", "undergrowth.bench.ours", folder, engine, *settings])


def _loop_by_hand(folder: str, processes: str, device: str) -> list[Contender]:
    if not OPPONENTS_FOLDER.is_dir():
        return []
    return [_opponent(LOOP, sys.executable, ["-m", "opponents.by_hand"], folder, processes, device)]


def _opponent(name: str, python: str, command: Sequence[str], folder: str, *words: str) -> Contender:
    # Our own PYTHONPATH is for our own Python only.
    ours = os.environ.get("PYTHONPATH", "") if python == sys.executable else ""
    path = os.pathsep.join(filter(None, [str(OPPONENTS_FOLDER.parent), str(Path(__file__).parent), ours]))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return Contender(name, [python, *command, folder, *words], {**quiet, "PYTHONPATH": path})

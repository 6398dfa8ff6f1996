"""`undergrowth bench start`: from the shell to the end of a first, short run.

The command is `undergrowth run --rounds 1 --no-report` on digits. It cannot be faster than Python with torch, so the
reference is 1.3 times `python -c "import torch"` and a second. Both are measured in turns, each in a new process; the
fastest of all turns counts, because other programs on the machine only add time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from time import perf_counter

from undergrowth.bench import Measurement
from undergrowth.core import RunError

TURNS = 5
TIMES, SECONDS = 1.3, 1.0


def measure() -> Iterator[Measurement | str]:
    walls: dict[str, list[float]] = {"ours": [], "torch": []}
    cpus: dict[str, list[float]] = {"ours": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "ours": ["-m", "undergrowth", "run", "--rounds", "1", "--no-report", "--out", folder],
            "torch": ["-c", "import torch"],
        }
        for turn in range(TURNS):
            for name, words in commands.items():
                wall, cpu = run_command([sys.executable, *words])
                walls[name].append(wall)
                cpus[name].append(cpu)
            yield f"turn {turn + 1} of {TURNS}: {walls['ours'][-1]:.1f} s, import torch {walls['torch'][-1]:.1f} s"
    for what, taken in (("wall time", walls), ("CPU time", cpus)):
        reference = TIMES * min(taken["torch"]) + SECONDS
        yield Measurement(f"first round, {what}", "seconds", min(taken["ours"]), reference, 1.0, lower_is_better=True)


def run_command(command: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of a command, with its child processes."""
    before, began = os.times(), perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    wall, after = perf_counter() - began, os.times()
    if done.returncode:
        raise RunError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used

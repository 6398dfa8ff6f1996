"""Runs a contender as another program and measures it from outside, so that all are measured in the same way.

A contender prints marks (`protocol.py`). Its processes are found by a variable in their environment, which all
processes that it starts inherit, also those of Ray, which are not its children. CPU time is read from `/proc` while the
contender waits. Memory is the proportional set size (PSS), which counts a shared page once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from undergrowth.core import InputError, RunError

VARIABLE = "UNDERGROWTH_CONTENDER"
MEMORY_INTERVAL = 0.25  # seconds between two readings of the memory
MAX_SECONDS_TO_EXIT = 15.0  # for processes that are left when a contender has ended
MARKS = ("ready", "warm", "done")


@dataclass(frozen=True)
class Contender:
    """How to start a contender. Others are compared with it by its `name`; tables show the title that it prints."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """One contender's work, measured once."""

    title: str
    clients: int  # of all rounds, warm-up included
    samples: int
    startup: float  # seconds until its first round began
    startup_cpu: float  # CPU seconds until then
    seconds: float  # of the rounds that count
    cpu: float  # CPU seconds of all its processes in these rounds
    memory: float  # peak bytes of all its processes together


def observe(contender: Contender, max_seconds: float = 3600.0) -> Observation:
    """Runs the contender. Raises RunError if it does not finish its work."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise InputError("bench engines measures processes through /proc, which only Linux has")
    key = uuid4().hex
    variable = f"{VARIABLE}={key}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **contender.environment, VARIABLE: key}
    with tempfile.TemporaryFile("w+") as errors:
        began = monotonic()
        try:
            process = subprocess.Popen(
                contender.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InputError(f"'{contender.command[0]}' cannot be started: {error.strerror}") from None
        watch = ProcessWatch(variable, max_seconds)
        watch.start()
        with process:
            try:
                marks, result = _follow(process, variable)
            except BaseException:
                end_processes(variable, patience=0)
                raise
            finally:
                watch.stop()
                end_processes(variable)
        if process.returncode or not result or any(name not in marks for name in MARKS):
            errors.seek(0)
            last = ([line.strip() for line in errors if line.strip()] or ["it printed no error"])[-1]
            late = f" after {max_seconds:g} seconds, which is too long" if watch.late else ""
            raise RunError(f"{contender.name} ended with code {process.returncode}{late}: {last}")
    ready, warm, done = (marks[name] for name in MARKS)
    return Observation(
        title=result["framework"],
        clients=result["clients"],
        samples=result["samples"],
        startup=ready["now"] - began,
        startup_cpu=ready["cpu"],
        seconds=done["now"] - done["since"],
        cpu=done["cpu"] - warm["cpu"],
        memory=watch.peak,
    )


def _follow(process: subprocess.Popen[str], variable: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The marks that the contender prints, with its CPU time at each, and its result."""
    marks: dict[str, dict[str, Any]] = {}
    result: dict[str, Any] = {}
    assert process.stdin and process.stdout
    for line in process.stdout:
        message = _message(line)
        if message.get("mark") in MARKS:
            marks[message["mark"]] = {**message, "cpu": cpu_seconds(variable)}
            with suppress(OSError):  # it has ended, which its exit code will tell
                process.stdin.write("go on\n")
                process.stdin.flush()
        elif "clients" in message:
            result = message
    return marks, result


class ProcessWatch(threading.Thread):
    """Reads the memory at intervals, and ends processes that take too long."""

    def __init__(self, variable: str, max_seconds: float) -> None:
        super().__init__(daemon=True)
        self.variable = variable
        self.deadline = monotonic() + max_seconds
        self.peak = 0.0
        self.late = False
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(MEMORY_INTERVAL):
            self.peak = max(self.peak, memory_bytes(self.variable))
            if monotonic() > self.deadline:
                self.late = True
                end_processes(self.variable, patience=0)
                return

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def marked_processes(variable: str) -> Iterator[Path]:
    """The folders in `/proc` of the processes that have this environment variable."""
    wanted = variable.encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # the process has ended, or belongs to another user
                if wanted in (folder / "environ").read_bytes():
                    yield folder


def cpu_seconds(variable: str) -> float:
    """CPU seconds of the marked processes and of their children that have ended."""
    ticks = 0
    for folder in marked_processes(variable):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(int(number) for number in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_bytes(variable: str) -> float:
    """Bytes of the marked processes. A page that several processes share counts once."""
    total = 0
    for folder in marked_processes(variable):
        with suppress(OSError):
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 1024.0 * total


def end_processes(variable: str, patience: float | None = None) -> None:
    """Waits until the marked processes have ended, and kills those that are left after `patience` seconds."""
    deadline = monotonic() + (MAX_SECONDS_TO_EXIT if patience is None else patience)
    while list(marked_processes(variable)):
        if monotonic() >= deadline:
            for folder in marked_processes(variable):
                with suppress(ProcessLookupError):
                    os.kill(int(folder.name), signal.SIGKILL)
        sleep(0.05)


def _message(line: str) -> dict[str, Any]:
    """The message in a line of a contender's output; {} if the line is text for people."""
    with suppress(ValueError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    return {}

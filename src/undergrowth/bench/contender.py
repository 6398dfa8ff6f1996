"""A contender: another program that does the work, watched from outside, so that all are measured with one measure.

It tells on standard output where it is (`opponents/given.py`). Its processes are found by a mark in their environment,
which all that it starts inherit, also those of Ray, which are no children of its. From `/proc`: CPU time in the
system's books while the contender waits, and memory with every shared page counted once (PSS).
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

MARK = "UNDERGROWTH_CONTENDER"
EVERY = 0.25  # seconds between two looks at the memory
PATIENCE = 15.0  # seconds in which what a contender has started should be gone after its end
MARKS = ("ready", "warm", "done")


@dataclass(frozen=True)
class Contender:
    """How to start one. `name` is what others are compared with it by; it has a title of its own."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What was seen of one contender that did its work once."""

    title: str
    clients: int  # of all rounds, also of the one that warms up
    samples: int
    startup: float  # seconds until its first round began
    startup_cpu: float  # and the seconds that it computed until then
    seconds: float  # of the rounds that count
    cpu: float  # seconds that all its processes computed in these
    memory: float  # bytes at the highest, of all its processes together


def watched(contender: Contender, longest: float = 3600.0) -> Seen:
    """Has it do its work. RunError: it did not."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise InputError("bench engines measures processes through /proc, which only Linux has")
    key = uuid4().hex
    mark = f"{MARK}={key}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **contender.environment, MARK: key}
    marks: dict[str, dict[str, Any]] = {}
    facts: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as errors:
        began = monotonic()
        try:
            process = subprocess.Popen(
                contender.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InputError(f"'{contender.command[0]}' cannot be started: {error.strerror}") from None
        watch = Watch(mark, longest)
        watch.start()
        with process:
            try:
                assert process.stdin and process.stdout
                for line in process.stdout:
                    told = _told(line)
                    if told.get("mark") in MARKS:
                        marks[told["mark"]] = {**told, "cpu": cpu(mark)}
                        with suppress(OSError):  # it is gone, which its code will say
                            process.stdin.write("go on\n")
                            process.stdin.flush()
                    elif "clients" in told:
                        facts = told
            except BaseException:
                end(mark, patience=0)
                raise
            finally:
                watch.stop()
                end(mark)
        if process.returncode or not facts or any(name not in marks for name in MARKS):
            errors.seek(0)
            last = ([line.strip() for line in errors if line.strip()] or ["it said nothing"])[-1]
            late = f" after {longest:g} seconds, which is too long" if watch.late else ""
            raise RunError(f"{contender.name} ended with code {process.returncode}{late}: {last}")
    ready, warm, done = (marks[name] for name in MARKS)
    return Seen(
        title=facts["framework"],
        clients=facts["clients"],
        samples=facts["samples"],
        startup=ready["now"] - began,
        startup_cpu=ready["cpu"],
        seconds=done["now"] - done["since"],
        cpu=done["cpu"] - warm["cpu"],
        memory=watch.highest,
    )


class Watch(threading.Thread):
    """Looks at the memory from time to time, and stops what takes too long."""

    def __init__(self, mark: str, longest: float) -> None:
        super().__init__(daemon=True)
        self.mark = mark
        self.deadline = monotonic() + longest
        self.highest = 0.0
        self.late = False
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(EVERY):
            self.highest = max(self.highest, memory(self.mark))
            if monotonic() > self.deadline:
                self.late = True
                end(self.mark, patience=0)
                return

    def stop(self) -> None:
        self._over.set()
        self.join()


def family(mark: str) -> Iterator[Path]:
    """The processes with this mark, as folders of `/proc`."""
    wanted = mark.encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended, or is somebody else's
                if wanted in (folder / "environ").read_bytes():
                    yield folder


def cpu(mark: str) -> float:
    """CPU seconds of all processes with this mark, and of those that ended and were their children."""
    ticks = 0
    for folder in family(mark):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(int(number) for number in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(mark: str) -> float:
    """Bytes of all processes with this mark; a page that several share counts once."""
    total = 0
    for folder in family(mark):
        with suppress(OSError):
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 1024.0 * total


def end(mark: str, patience: float | None = None) -> None:
    """Waits until all processes with this mark are gone, and then ends those that are left."""
    deadline = monotonic() + (PATIENCE if patience is None else patience)
    while list(family(mark)):
        if monotonic() >= deadline:
            for folder in family(mark):
                with suppress(ProcessLookupError):
                    os.kill(int(folder.name), signal.SIGKILL)
        sleep(0.05)


def _told(line: str) -> dict[str, Any]:
    """What a line of a contender says; {} for lines that are meant for people."""
    with suppress(ValueError):
        told = json.loads(line)
        if isinstance(told, dict):
            return told
    return {}

"""Worker processes that die at a chosen moment."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import tempfile
from typing import Any

from undergrowth.engines.processes.arena import Arena


class Countdown:
    """A counter that all processes share: True at the call number `asked`, and at `often` calls in all."""

    def __init__(self, asked: int, often: int = 1) -> None:
        self.left = memoryview(mmap.mmap(-1, 8)).cast("q")
        self.left[0] = asked
        self.often = often
        self._file, path = tempfile.mkstemp()
        os.unlink(path)

    def __call__(self) -> bool:
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # otherwise two processes could count as one
        self.left[0] = left = self.left[0] - 1
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        return -self.often < left <= 0

    def __del__(self) -> None:
        os.close(self._file)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in(step: str, when: Countdown, monkeypatch: Any) -> None:
    """Makes workers die while they write tensors or words, before a record is committed, or right after."""
    parent, commit, write, words = os.getpid(), Arena.commit, Arena.write, Arena._write_bytes

    def commit_and_die(self: Arena, record: Any) -> None:
        now = os.getpid() != parent and when()
        if now and step == "before":
            die()
        commit(self, record)
        if now and step == "after":
            die()

    def write_and_die(self: Arena, *arguments: Any, **more: Any) -> Any:
        if os.getpid() != parent and when():
            self._view("float32", [64], arguments[1]).fill_(float("nan"))  # an incomplete partial result
            die()
        return write(self, *arguments, **more)

    def words_and_die(self: Arena, written: bytes, at: int) -> int:
        if os.getpid() != parent and when():
            words(self, written[: len(written) // 2], at)
            die()
        return words(self, written, at)

    if step in ("before", "after"):
        monkeypatch.setattr(Arena, "commit", commit_and_die)
    elif step == "tensors":
        monkeypatch.setattr(Arena, "write", write_and_die)
    else:
        monkeypatch.setattr(Arena, "_write_bytes", words_and_die)

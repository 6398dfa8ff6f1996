"""Processes of a test's own that are there at once: they are forked from one that has loaded torch already.

For tests that kill one. What measures the memory or the start of a process, or types a command, starts Python.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["undergrowth.runs.execution", "undergrowth.engines", "sklearn.datasets"])


def begin(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """Does `target(said, *arguments)` in a process of its own, and what that sends through `said` is received here.

    Receiving from a process that has ended, or was killed, is an EOFError.
    """
    here, there = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=target, args=(there, *arguments), daemon=True)
    child.start()
    there.close()
    return child, here

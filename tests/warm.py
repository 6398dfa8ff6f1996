"""Child processes that start at once: they are forked from a process that has imported torch already.

For tests that kill a process. Tests that measure the memory of a process or run a command start Python instead.
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
    """A process that calls `target(connection, *arguments)`, and the other end of that connection.

    Receiving from a process that has ended or was killed raises EOFError.
    """
    here, there = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=target, args=(there, *arguments), daemon=True)
    child.start()
    there.close()
    return child, here

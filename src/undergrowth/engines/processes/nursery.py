"""Nursery: a process that does nothing but fork workers, made before its parent has done anything that spoils a fork.

A fork copies what a process has at that moment: torch's autograd threads (on a machine with a GPU, a child of a
process that has trained cannot train), the lock on a run's folder, connections to other workers. The nursery is forked
when an engine is opened, while there is none of that, and it stays so; every worker, also one that takes the place of
another, is forked from it. It does nothing but wait for requests, so it sees at once when the parent is gone, and takes
its workers along.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from undergrowth.core import InputError
from undergrowth.engines.memory import keep_memory

PATIENCE = 0.5  # seconds in which a worker that has nothing to do should have ended by itself
_REQUEST = struct.Struct("<cI")  # b"+" and a worker's number: fork it; b"-" and a process id: end it
_ANSWER = struct.Struct("<I")  # the id of the process that was forked or ended

Serve = Callable[[int, Connection], None]


class Nursery:
    """`serve(number, line)` is what the worker of that number does in its own process, until its line ends."""

    def __init__(self, serve: Serve) -> None:
        if not hasattr(os, "fork"):
            raise InputError("run.engine 'processes' needs an operating system that can fork; write serial or vector")
        self._owner = os.getpid()
        self._line, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # Python warns of other threads when it forks. What they hold is not used in the child.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _in_child(partial(_tend, theirs, serve, self._line))
        theirs.close()

    def bear(self, number: int) -> tuple[int, Connection]:
        """A new worker: its process id and the line to it. OSError: the nursery is gone."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._line, [_REQUEST.pack(b"+", number)], [theirs.fileno()])
            pid = self._answer()
        except OSError:
            ours.close()
            raise
        return pid, Connection(ours.detach())

    def end(self, pid: int) -> None:
        """Kills a worker."""
        with suppress(OSError):  # the nursery is gone, and its workers with it
            self._line.sendall(_REQUEST.pack(b"-", pid))
            self._answer()

    def _answer(self) -> int:
        answer = self._line.recv(_ANSWER.size, socket.MSG_WAITALL)
        if len(answer) < _ANSWER.size:
            raise OSError("the nursery is gone")
        return int(_ANSWER.unpack(answer)[0])

    def close(self) -> None:
        """Ends the nursery and all its workers. May be called twice."""
        if os.getpid() != self._owner or self._line.fileno() < 0:
            return  # a process that was forked from this one inherits the object, not what it is in charge of
        self._line.close()
        with suppress(ChildProcessError):  # somebody else has waited for it
            if not _gone(self.pid, 10 * PATIENCE):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


def _in_child(work: Callable[[], None]) -> None:
    """Ends the process after the work, whatever happens, without what Python does at its end: that is the parent's."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # standard error may be locked by a thread that is not here
    finally:
        os._exit(code)


def _tend(line: socket.socket, serve: Serve, parents: socket.socket) -> None:
    """The nursery's whole life."""
    parents.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who then closes this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.freeze()  # what was inherited is not looked through again: that would copy its pages
    workers: set[int] = set()
    while True:
        request, descriptors, _, _ = socket.recv_fds(line, _REQUEST.size, 1)
        workers -= {pid for pid in workers if _gone(pid)}
        if len(request) < _REQUEST.size:  # the parent has closed the line, or is dead
            break
        kind, number = _REQUEST.unpack(request)
        if kind == b"+":
            here = os.getpid()
            pid = os.fork()
            if not pid:
                line.close()
                _in_child(partial(_live, serve, number, Connection(descriptors[0]), here))
            os.close(descriptors[0])
            workers.add(pid)
            number = pid
        elif number in workers:
            workers.remove(number)
            _kill(number)
        line.sendall(_ANSWER.pack(number))
    # Idle workers end by themselves, since their lines have ended too.
    deadline = time.monotonic() + PATIENCE
    for pid in workers:
        if not _gone(pid, deadline - time.monotonic()):
            _kill(pid)


def _live(serve: Serve, number: int, line: Connection, nursery: int) -> None:
    """The worker's whole life."""
    if sys.platform == "linux":
        # Dies with the nursery, also in the middle of a job. Elsewhere it notices when its line has ended.
        system = ctypes.CDLL(None)
        system.prctl(1, signal.SIGKILL)
        if os.getppid() != nursery:
            return
    keep_memory()
    serve(number, line)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _gone(pid: int, patience: float = 0.0) -> bool:
    """Whether a child has ended, or does so within some seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)

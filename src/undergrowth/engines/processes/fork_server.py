"""A process that only forks workers. It is forked before its parent does anything that must not be inherited.

A fork copies the state that a process has at that moment: torch's autograd threads (on a machine with a GPU, the child
of a process that has trained cannot train), the lock on a run's folder, connections to other workers. The fork server
is forked when an engine is opened, before any of these exist. Every worker is forked from it, also a replacement. As it
only waits for requests, it notices at once when the parent ends, and ends its workers.
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
from undergrowth.engines.memory import keep_freed_memory

EXIT_SECONDS = 0.5  # within which an idle worker ends by itself
_REQUEST = struct.Struct("<cI")  # b"+" and a worker's number: fork it; b"-" and a process id: end it
_REPLY = struct.Struct("<I")  # the id of the process that was forked or ended
_PR_SET_PDEATHSIG = 1  # of Linux' prctl

Serve = Callable[[int, Connection], None]


class ForkServer:
    """`serve(number, connection)` is what a worker runs in its process until the connection ends."""

    def __init__(self, serve: Serve) -> None:
        if not hasattr(os, "fork"):
            raise InputError("run.engine 'processes' needs an operating system that can fork; write serial or vector")
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # Python warns about forking with other threads. The child uses nothing that they hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _run_in_child(partial(_serve_requests, theirs, serve, self._socket))
        theirs.close()

    def spawn(self, number: int) -> tuple[int, Connection]:
        """Forks a worker; returns its process id and the connection to it. OSError: the fork server is gone."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._socket, [_REQUEST.pack(b"+", number)], [theirs.fileno()])
            pid = self._reply()
        except OSError:
            ours.close()
            raise
        return pid, Connection(ours.detach())

    def end(self, pid: int) -> None:
        """Kills a worker."""
        with suppress(OSError):  # the fork server is gone, and its workers with it
            self._socket.sendall(_REQUEST.pack(b"-", pid))
            self._reply()

    def _reply(self) -> int:
        reply = self._socket.recv(_REPLY.size, socket.MSG_WAITALL)
        if len(reply) < _REPLY.size:
            raise OSError("the fork server is gone")
        return int(_REPLY.unpack(reply)[0])

    def close(self) -> None:
        """Ends the fork server and all its workers. May be called twice."""
        if os.getpid() != self._owner or self._socket.fileno() < 0:
            return  # a forked process inherits this object, but not the responsibility for the workers
        self._socket.close()
        with suppress(ChildProcessError):  # it was waited for already
            if not _has_ended(self.pid, 10 * EXIT_SECONDS):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


def _run_in_child(work: Callable[[], None]) -> None:
    """Runs `work` and ends the process, in any case without Python's exit handlers: those belong to the parent."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # sys.stderr may be locked by a thread of the parent
    finally:
        os._exit(code)


def _serve_requests(requests: socket.socket, serve: Serve, parents: socket.socket) -> None:
    """The main function of the fork server. `parents`: the parent's end of the socket."""
    parents.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent closes the fork server
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.freeze()  # a collection would visit inherited objects, and so copy their pages
    workers: set[int] = set()
    with suppress(ConnectionError):  # the parent was killed while it made a request
        _fork_workers(requests, serve, workers)
    # Idle workers end by themselves, because their connections have ended too.
    deadline = time.monotonic() + EXIT_SECONDS
    for pid in workers:
        if not _has_ended(pid, deadline - time.monotonic()):
            _kill(pid)


def _fork_workers(requests: socket.socket, serve: Serve, workers: set[int]) -> None:
    """Serves requests until the parent closes the socket, or dies. `workers` gets the ids of the processes."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _REQUEST.size, 1)
        workers -= {pid for pid in workers if _has_ended(pid)}
        if len(request) < _REQUEST.size:
            return
        kind, number = _REQUEST.unpack(request)
        if kind == b"+":
            fork_server = os.getpid()
            pid = os.fork()
            if not pid:
                requests.close()
                _run_in_child(partial(_worker_main, serve, number, Connection(descriptors[0]), fork_server))
            os.close(descriptors[0])
            workers.add(pid)
            number = pid
        elif number in workers:
            workers.remove(number)
            _kill(number)
        requests.sendall(_REPLY.pack(number))


def _worker_main(serve: Serve, number: int, connection: Connection, fork_server: int) -> None:
    if sys.platform == "linux":
        # The worker dies with the fork server, also during a job. On other systems it ends after the job.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != fork_server:
            return
    keep_freed_memory()
    serve(number, connection)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _has_ended(pid: int, timeout: float = 0.0) -> bool:
    """Whether a child has ended, or ends within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)

"""The worker processes of an engine and the connections to them. A worker that died is replaced when it is needed."""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from typing import cast

from undergrowth.engines.processes.fork_server import ForkServer, Serve


class WorkerPool:
    """Workers by number. `serve` is the main function of each worker process."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._fork_server = ForkServer(serve)
        self._workers: dict[int, tuple[int, Connection]] = {}

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each worker that was started."""
        return {number: pid for number, (pid, _) in self._workers.items()}

    @property
    def fork_server_pid(self) -> int:
        return self._fork_server.pid

    def send(self, number: int, message: bytes) -> None:
        """Sends a message to a worker, which is started if necessary. Raises OSError if it died."""
        if number not in self._workers:
            self._workers[number] = self._spawn(number)
        self._workers[number][1].send_bytes(message)

    def wait(self, numbers: Iterable[int]) -> list[int]:
        """Waits until some of these workers have sent a message or died; returns which."""
        by_connection = {self._workers[number][1]: number for number in numbers}
        return [by_connection[cast(Connection, connection)] for connection in wait(list(by_connection))]

    def receive(self, number: int) -> bytes:
        """The next message of a worker. Raises EOFError or OSError if it died."""
        return self._workers[number][1].recv_bytes()

    def end(self, number: int) -> None:
        """Ends a worker; the next message to this number starts a new one."""
        if number in self._workers:
            pid, connection = self._workers.pop(number)
            connection.close()
            self._fork_server.end(pid)

    def close(self) -> None:
        """Ends all workers. May be called twice."""
        for _, connection in self._workers.values():
            connection.close()
        self._workers = {}
        self._fork_server.close()

    def _spawn(self, number: int) -> tuple[int, Connection]:
        try:
            return self._fork_server.spawn(number)
        except OSError:  # the fork server was killed, and its workers with it
            self._fork_server.close()
            self._fork_server = ForkServer(self._serve)
            return self._fork_server.spawn(number)

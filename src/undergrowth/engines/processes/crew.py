"""Crew: the worker processes of an engine and the lines to them. One that is gone is replaced when it is needed."""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from typing import cast

from undergrowth.engines.processes.nursery import Nursery, Serve


class Crew:
    """Workers by number. `serve` is what each does in its own process."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._nursery = Nursery(serve)
        self._workers: dict[int, tuple[int, Connection]] = {}

    @property
    def pids(self) -> dict[int, int]:
        """The process of each worker that was started."""
        return {number: pid for number, (pid, _) in self._workers.items()}

    def send(self, number: int, message: bytes) -> None:
        """Raises OSError when the worker is gone."""
        if number not in self._workers:
            self._workers[number] = self._borne(number)
        self._workers[number][1].send_bytes(message)

    def waiting(self, numbers: Iterable[int]) -> list[int]:
        """Those of the workers that have said something, or are gone. Waits until there is one."""
        lines = {self._workers[number][1]: number for number in numbers}
        return [lines[cast(Connection, line)] for line in wait(list(lines))]

    def receive(self, number: int) -> bytes:
        """Raises EOFError or OSError when the worker is gone."""
        return self._workers[number][1].recv_bytes()

    def drop(self, number: int) -> None:
        """Ends a worker; the next message for its number goes to a new one."""
        if number in self._workers:
            pid, line = self._workers.pop(number)
            line.close()
            self._nursery.end(pid)

    def close(self) -> None:
        """Ends all. May be called twice."""
        for _, line in self._workers.values():
            line.close()
        self._workers = {}
        self._nursery.close()

    def _borne(self, number: int) -> tuple[int, Connection]:
        try:
            return self._nursery.bear(number)
        except OSError:  # it was killed, and its workers went with it
            self._nursery.close()
            self._nursery = Nursery(self._serve)
            return self._nursery.bear(number)

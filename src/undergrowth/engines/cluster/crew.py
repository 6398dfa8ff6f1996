"""The workers of a Ray cluster as one crew: they are asked for, they come, they die and are replaced.

A call is a list of jobs for one worker. If the worker dies, the call goes as it is to the first worker that is free,
be it its replacement or another: the same jobs in the same order are the same sums, whoever does them.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from undergrowth.core import InputError, RunError
from undergrowth.engines.cluster.crate import Crate, packed, unpacked
from undergrowth.engines.cluster.worker import Report, Worker, together
from undergrowth.engines.world import Outcome, Settings, World

RETRIES = 3  # of a call whose worker died, and of a worker that does not come up
PATIENCE = 60.0  # seconds that a round waits for a worker that has been asked for, while there are others
LONGEST = 900.0  # the same when there is none: a cloud takes minutes to start a machine


@dataclass(eq=False)
class Member:
    actor: Any
    node: str  # the machine it is on
    number: int


@dataclass(eq=False)
class Call:
    devices: Sequence[str]
    member: Member  # whom it is meant for; sums are combined by the machine of that one
    orders: Crate
    packets: Sequence[Any]
    tries: int = 0
    totals: Any = None  # where the combined uploads are
    report: Report | None = None
    finished: float = 0.0


class Crew:
    def __init__(self, settings: Settings, world: World) -> None:
        self.settings = settings
        self.joined = not ray.is_initialized()  # otherwise the user has, and leaves when it pleases them
        if self.joined:
            _join(settings)
        self.resource = "GPU" if settings.devices[0].startswith("cuda") else "CPU"
        # A worker sees only the GPU that Ray gives it, and calls it the first.
        self.device = "cuda" if self.resource == "GPU" else "cpu"
        self.servers = world.servers
        self._kind = ray.remote(Worker)
        self._parts = [
            ray.put(packed((world.task, world.client, world.servers, world.links))),
            ray.put(packed(world.shards)),
        ]
        self.members: list[Member] = []
        self._coming: dict[Any, tuple[Any, float]] = {}  # its first word → the actor, and when it was asked for
        self._asked = 0
        self._failed = 0  # workers in a row that did not come up

    # Who is there -------------------------------------------------------------------------------------------

    def muster(self) -> list[Member]:
        """All workers there are, after asking for those that are missing and waiting for them a while."""
        self._count()
        while self._coming:
            latest = max(asked for _, asked in self._coming.values())
            if time.monotonic() > latest + (PATIENCE if self.members else LONGEST):
                break
            for word in ray.wait(list(self._coming), num_returns=1, timeout=0.5)[0]:
                self._welcome(word)
            self._count()
        if not self.members:
            there = f"{_total(self.resource):g} {self.resource}"
            raise RunError(f"no worker came up in {LONGEST:.0f} s; the Ray cluster has {there}")
        # By machine, so that where Ray happened to put the first of them does not change the order of sums.
        self.members.sort(key=lambda member: (member.node, member.number))
        return list(self.members)

    def _count(self) -> None:
        """Forgets who was on machines that are gone, and asks for as many as there should be."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for member in [member for member in self.members if member.node not in alive]:
            self._dismiss(member)
        missing = self._wanted() - len(self.members) - len(self._coming)
        self._ask_for(missing)
        for word in list(self._coming)[missing:] if missing < 0 else ():  # there is no place for them any more
            actor, _ = self._coming.pop(word)
            ray.kill(actor)

    def _wanted(self) -> int:
        if self.settings.workers is not None:
            return self.settings.workers
        # All there is, but not what others use.
        free = int(ray.available_resources().get(self.resource, 0))
        return max(1, min(int(_total(self.resource)), len(self.members) + len(self._coming) + free))

    def _ask_for(self, count: int) -> None:
        if self.resource == "GPU":
            need = {"num_cpus": 0, "num_gpus": share(self.settings.workers, _total("GPU"))}
        else:
            need = {"num_cpus": 1}
        for _ in range(count):
            actor = self._kind.options(**need).remote(*self._parts, self.device, self.settings)
            self._coming[actor.node.remote()] = (actor, time.monotonic())

    def _welcome(self, word: Any) -> Member | None:
        actor, _ = self._coming.pop(word)
        try:
            node = ray.get(word)
        except RayError as error:
            self._failed += 1
            if self._failed > RETRIES:
                raise RunError(f"no worker can be started on the Ray cluster: {error}") from error
            self._ask_for(1)
            return None
        self._failed = 0
        self._asked += 1
        self.members.append(Member(actor, node, self._asked))
        return self.members[-1]

    def _dismiss(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
        with suppress(RayError):
            ray.kill(member.actor)

    # What they do -------------------------------------------------------------------------------------------

    def do(self, calls: Sequence[Call]) -> dict[str, Outcome]:
        """Does all calls, writes their reports into them, and gives the combined uploads by node of the tree.

        Raises Unlike where the sums of two workers do not go together.
        """
        while True:
            self._work([call for call in calls if call.report is None])
            sums = self._sums(calls)
            if sums is not None:
                return together(self.servers, sums)

    def _work(self, calls: Sequence[Call]) -> None:
        waiting, free = deque(calls), list(self.members)
        busy: dict[Any, tuple[Member, Call]] = {}
        while waiting or busy:
            while waiting and free:
                call = waiting.popleft()
                member = free.pop(free.index(call.member) if call.member in free else 0)
                call.totals, report = member.actor.work.options(num_returns=2).remote(call.orders, *call.packets)
                busy[report] = (member, call)
            if not busy and not self._coming:
                self._ask_for(1)
            heard, _ = ray.wait([*busy, *self._coming], num_returns=1, timeout=None if busy else LONGEST)
            if not heard:
                raise RunError(f"all workers are gone, and no other came up in {LONGEST:.0f} s")
            if heard[0] in self._coming:
                come = self._welcome(heard[0])
                free.extend([come] if come else [])
                continue
            member, call = busy.pop(heard[0])
            try:
                call.report = unpacked(ray.get(heard[0]))
                call.finished = time.perf_counter()
                free.append(member)
            except RayError as error:
                if not _lost(error):
                    raise
                self._dismiss(member)
                self._ask_for(1)
                self._again(call, error)
                waiting.append(call)

    def _again(self, call: Call, error: RayError) -> None:
        call.report = call.totals = None
        call.tries += 1
        if call.tries > RETRIES:
            some = ", ".join(call.devices[:3]) + (f" and {len(call.devices) - 3} more" if len(call.devices) > 3 else "")
            reason = str(error).strip().splitlines()[0]
            raise RunError(f"the worker of {some} died {call.tries} times: {reason}") from error

    def _sums(self, calls: Sequence[Call]) -> list[list[Outcome]] | None:
        """The combined uploads of each machine; None: some were lost with their machine, and their calls are open."""
        homes: dict[str, list[Call]] = {}
        for call in calls:
            if call.report is not None and call.report.folds:
                homes.setdefault(call.member.node, []).append(call)
        asked: list[tuple[Member | None, list[Any]]] = []
        for home, there in homes.items():
            parts = [call.totals for call in there]
            hand = next((member for member in self.members if member.node == home), None) if len(parts) > 1 else None
            asked.append((hand, [hand.actor.combine.remote(*parts)] if hand else parts))
        sums: list[list[Outcome]] = []
        for there, (hand, references) in zip(homes.values(), asked):
            try:
                found = [unpacked(crate) for crate in ray.get(references)]
            except RayError as error:
                if not _lost(error):
                    raise
                if hand is not None:
                    self._dismiss(hand)
                found = self._rescue(there)
            sums.append(list(together(self.servers, found).values()))
        return sums if all(call.report is not None for call in calls) else None

    def _rescue(self, calls: Sequence[Call]) -> list[list[Outcome]]:
        """The worker that was to combine them is gone: fetches each by itself, and opens the calls that are lost."""
        found = []
        for call in calls:
            try:
                found.append(unpacked(ray.get(call.totals)))
            except RayError as error:
                self._again(call, error)
        return found

    def close(self) -> None:
        for actor in [*(member.actor for member in self.members), *(actor for actor, _ in self._coming.values())]:
            with suppress(Exception):  # the cluster may be gone, and there is nothing else to do
                ray.kill(actor)
        self.members, self._coming, self._parts = [], {}, []
        if self.joined:
            ray.shutdown()


def share(workers: int | None, there: float) -> float:
    """The part of a GPU that a worker gets: all of it, unless more workers are wanted than there are GPUs."""
    return 1 / math.ceil(workers / there) if workers and there >= 1 else 1.0


def _join(settings: Settings) -> None:
    if settings.address is None:
        # Nothing is told to anybody about a Ray that only this run sees.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cpus = settings.workers if settings.devices[0] == "cpu" else None
        ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        return
    host, colon, port = settings.address.rpartition(":")
    try:
        if colon and "://" not in settings.address:  # Ray itself would try for a quarter of an hour
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(settings.address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"run.address '{settings.address}': there is no Ray cluster to join ({reason})") from error


def _total(resource: str) -> float:
    return float(ray.cluster_resources().get(resource, 0))


def _lost(error: RayError) -> bool:
    """Whether a machine or a worker failed, and not what it was doing."""
    return not isinstance(error, RayTaskError) or isinstance(error.cause, RayError)

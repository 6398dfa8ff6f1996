"""The workers of a Ray cluster: they are requested, join, die and are replaced.

A call is a list of jobs for one worker. If the worker dies, the same call goes to the first free worker, its
replacement or another: the same jobs in the same order give the same sums on every worker.
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

from undergrowth.core import InputError, Packet, RunError
from undergrowth.engines.combining import PartialResults, merge_partial_results
from undergrowth.engines.ray_cluster.serialization import SerializedObject, deserialize, send_source, serialize
from undergrowth.engines.ray_cluster.worker import Worker, WorkerReport
from undergrowth.engines.world import EngineSettings, World

MAX_RETRIES = 3  # of a call whose worker died, and of a worker that fails to start
JOIN_SECONDS = 60.0  # that a round waits for a requested worker while there are others
FIRST_JOIN_SECONDS = 900.0  # the same while there is none: a cloud takes minutes to start a machine


@dataclass(eq=False)
class Member:
    """A worker that has joined."""

    actor: Any
    machine: str
    number: int


@dataclass(eq=False)
class Call:
    """The jobs of one worker. `member`: the worker it is meant for, on whose machine its results are merged."""

    devices: Sequence[str]
    member: Member
    messages: SerializedObject
    downs: Sequence[Any]
    tries: int = 0
    partial_results: Any = None  # a reference into the object store
    report: WorkerReport | None = None
    finish_time: float = 0.0


class RayWorkerPool:
    """Keeps as many workers as the settings or the cluster allow, and hands calls to them."""

    def __init__(self, settings: EngineSettings, world: World) -> None:
        self.settings = settings
        self.owns_connection = not ray.is_initialized()  # otherwise the user connected, and disconnects
        if self.owns_connection:
            _connect(settings)
        self.resource = "GPU" if settings.torch_devices[0].startswith("cuda") else "CPU"
        # A worker sees only the GPU that Ray assigned to it, so that GPU is always the first.
        self.torch_device = "cuda" if self.resource == "GPU" else "cpu"
        self.servers = world.servers
        send_source(settings.modules)
        self._actor_class = ray.remote(Worker)
        self._world = [
            ray.put(serialize((world.task, world.client, world.servers, world.links))),
            ray.put(serialize(world.shards)),
        ]
        self.members: list[Member] = []
        self._joining: dict[Any, tuple[Any, float]] = {}  # reference to its first answer → actor, time of the request
        self._joined = 0  # so far
        self._failures = 0  # workers in a row that did not start

    # Workers ------------------------------------------------------------------------------------------------

    def assemble(self) -> list[Member]:
        """Requests missing workers and waits for them for a while; returns all that have joined."""
        self._request_missing()
        while self._joining:
            latest = max(requested for _, requested in self._joining.values())
            if time.monotonic() > latest + (JOIN_SECONDS if self.members else FIRST_JOIN_SECONDS):
                break
            for reference in ray.wait(list(self._joining), num_returns=1, timeout=0.5)[0]:
                self._join(reference)
            self._request_missing()
        if not self.members:
            available = f"{_total(self.resource):g} {self.resource}"
            raise RunError(f"no worker came up in {FIRST_JOIN_SECONDS:.0f} s; the Ray cluster has {available}")
        # Sorted by machine, so that the order of sums does not depend on where Ray started the first worker.
        self.members.sort(key=lambda member: (member.machine, member.number))
        return list(self.members)

    def _request_missing(self) -> None:
        """Removes the workers of machines that are gone, and requests as many as there should be."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for member in [member for member in self.members if member.machine not in alive]:
            self._remove(member)
        missing = self._wanted() - len(self.members) - len(self._joining)
        self._request(missing)
        for reference in list(self._joining)[missing:] if missing < 0 else ():  # there are too few resources now
            actor, _ = self._joining.pop(reference)
            ray.kill(actor)

    def _wanted(self) -> int:
        if self.settings.workers is not None:
            return self.settings.workers
        # All resources of the cluster, but not those that others use.
        free = int(ray.available_resources().get(self.resource, 0))
        return max(1, min(int(_total(self.resource)), len(self.members) + len(self._joining) + free))

    def _request(self, count: int) -> None:
        if self.resource == "GPU":
            resources = {"num_cpus": 0, "num_gpus": gpu_fraction(self.settings.workers, _total("GPU"))}
        else:
            resources = {"num_cpus": 1}
        for _ in range(count):
            actor = self._actor_class.options(**resources).remote(*self._world, self.torch_device, self.settings)
            self._joining[actor.machine.remote()] = (actor, time.monotonic())

    def _join(self, reference: Any) -> Member | None:
        actor, _ = self._joining.pop(reference)
        try:
            machine = ray.get(reference)
        except RayError as error:
            self._failures += 1
            if self._failures > MAX_RETRIES:
                raise RunError(f"no worker can be started on the Ray cluster: {error}") from error
            self._request(1)
            return None
        self._failures = 0
        self._joined += 1
        self.members.append(Member(actor, machine, self._joined))
        return self.members[-1]

    def _remove(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
        with suppress(RayError):
            ray.kill(member.actor)

    # Calls --------------------------------------------------------------------------------------------------

    def run(self, calls: Sequence[Call]) -> dict[str, Packet | None]:
        """Runs all calls, stores their reports in them, and returns the merged partial results."""
        while True:
            self._run_calls([call for call in calls if call.report is None])
            partial_results = self._fetch_partial_results(calls)
            if partial_results is not None:
                return merge_partial_results(self.servers, partial_results)

    def _run_calls(self, calls: Sequence[Call]) -> None:
        waiting, free = deque(calls), list(self.members)
        busy: dict[Any, tuple[Member, Call]] = {}
        while waiting or busy:
            while waiting and free:
                call = waiting.popleft()
                member = free.pop(free.index(call.member) if call.member in free else 0)
                call.partial_results, report = member.actor.run.options(num_returns=2).remote(
                    call.messages, *call.downs
                )
                busy[report] = (member, call)
            if not busy and not self._joining:
                self._request(1)
            done, _ = ray.wait([*busy, *self._joining], num_returns=1, timeout=None if busy else FIRST_JOIN_SECONDS)
            if not done:
                raise RunError(f"all workers are gone, and no other came up in {FIRST_JOIN_SECONDS:.0f} s")
            if done[0] in self._joining:
                joined = self._join(done[0])
                free.extend([joined] if joined else [])
                continue
            member, call = busy.pop(done[0])
            if self._receive_report(done[0], member, call):
                free.append(member)
            else:
                waiting.append(call)

    def _receive_report(self, reference: Any, member: Member, call: Call) -> bool:
        """False: the worker died. It is replaced, and the call must run again."""
        try:
            call.report = deserialize(ray.get(reference))
        except RayError as error:
            if not _is_lost(error):
                raise
            self._remove(member)
            self._request(1)
            self._reopen(call, error)
            return False
        call.finish_time = time.perf_counter()
        return True

    def _reopen(self, call: Call, error: RayError) -> None:
        call.report = call.partial_results = None
        call.tries += 1
        if call.tries > MAX_RETRIES:
            more = f" and {len(call.devices) - 3} more" if len(call.devices) > 3 else ""
            reason = str(error).strip().splitlines()[0]
            raise RunError(
                f"the worker of {', '.join(call.devices[:3])}{more} died {call.tries} times: {reason}"
            ) from error

    def _fetch_partial_results(self, calls: Sequence[Call]) -> list[PartialResults] | None:
        """The partial results of each machine; None: a machine was lost with some, and their calls must run again.

        One worker of each machine merges those of its neighbours, so one partial result per node crosses the network.
        """
        by_machine: dict[str, list[Call]] = {}
        for call in calls:
            if call.report is not None and call.report.has_partial_results:
                by_machine.setdefault(call.member.machine, []).append(call)
        requests: list[tuple[Member | None, list[Any]]] = []
        for machine, of_machine in by_machine.items():
            parts = [call.partial_results for call in of_machine]
            merger = next((m for m in self.members if m.machine == machine), None) if len(parts) > 1 else None
            requests.append((merger, [merger.actor.merge.remote(*parts)] if merger else parts))
        found: list[PartialResults] = []
        for of_machine, (merger, references) in zip(by_machine.values(), requests, strict=True):
            try:
                fetched = [deserialize(serialized) for serialized in ray.get(references)]
            except RayError as error:
                if not _is_lost(error):
                    raise
                if merger is not None:
                    self._remove(merger)
                fetched = self._fetch_each(of_machine)
            found.append(merge_partial_results(self.servers, fetched))
        return found if all(call.report is not None for call in calls) else None

    def _fetch_each(self, calls: Sequence[Call]) -> list[PartialResults]:
        """The partial results of calls whose merging worker died. Reopens the calls whose results are lost."""
        found = []
        for call in calls:
            try:
                found.append(deserialize(ray.get(call.partial_results)))
            except RayError as error:
                self._reopen(call, error)
        return found

    def close(self) -> None:
        for actor in [*(member.actor for member in self.members), *(actor for actor, _ in self._joining.values())]:
            with suppress(Exception):  # the cluster may be gone, and nothing else can be done
                ray.kill(actor)
        self.members, self._joining, self._world = [], {}, []
        if self.owns_connection:
            ray.shutdown()


def gpu_fraction(workers: int | None, gpus: float) -> float:
    """The fraction of a GPU that a worker gets: 1, unless there are more workers than GPUs."""
    return 1 / math.ceil(workers / gpus) if workers and gpus >= 1 else 1.0


def _connect(settings: EngineSettings) -> None:
    if settings.address is None:
        # A local Ray that only this run uses sends no usage statistics.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cpus = settings.workers if settings.torch_devices[0] == "cpu" else None
        ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        return
    host, colon, port = settings.address.rpartition(":")
    try:
        if colon and "://" not in settings.address:  # Ray would try for a quarter of an hour
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(settings.address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"run.address '{settings.address}': there is no Ray cluster to join ({reason})") from error


def _total(resource: str) -> float:
    return float(ray.cluster_resources().get(resource, 0))


def _is_lost(error: RayError) -> bool:
    """Whether a machine or a worker failed, rather than the code that it ran."""
    return not isinstance(error, RayTaskError) or isinstance(error.cause, RayError)

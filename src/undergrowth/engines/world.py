"""What engines work on: jobs in, outcomes out. Same jobs, same outcomes; only the where and the how differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from undergrowth.core import Client, Context, Packet, RunError, Server, Shard, State, Task, fold


class Shards(Protocol):
    """Where the training samples of a device come from."""

    def train(self, device: str) -> Shard: ...


@dataclass(frozen=True)
class Job:
    """One device's work. With `fold`, its upload may be combined with those of other jobs of the same node."""

    node: str
    device: str
    down: Packet
    context: Context
    fold: bool = False


@dataclass(frozen=True)
class Outcome:
    """An upload, or several combined ones, or (`up` is None) nothing but refusals."""

    node: str
    up: Packet | None
    sent: Mapping[str, int] = field(default_factory=dict)  # device → bytes of its upload, for all in `up`
    refused: Mapping[str, str] = field(default_factory=dict)  # device → what is wrong with its upload
    folded: bool = False


class States:
    """The own state of every device that has one, and which of them changed since last asked."""

    def __init__(self) -> None:
        self._kept: dict[str, State] = {}
        self._changed: set[str] = set()

    def get(self, device: str) -> State:
        return self._kept.get(device, {})

    def put(self, device: str, state: State) -> None:
        if state is not self._kept.get(device) and (state or device in self._kept):
            self._kept[device] = state
            self._changed.add(device)

    def all(self) -> Mapping[str, State]:
        return self._kept

    def take_changed(self) -> set[str]:
        changed, self._changed = self._changed, set()
        return changed

    def restore(self, states: Mapping[str, State]) -> None:
        self._kept, self._changed = dict(states), set()


@dataclass
class World:
    """What stays the same through a run, and the devices' own states."""

    task: Task
    client: Client
    servers: Mapping[str, Server]  # by node: how uploads are checked and combined
    shards: Shards
    states: States = field(default_factory=States)
    device: str = "cpu"  # the torch device that jobs run on


class Engine(Protocol):
    def open(self, world: World) -> None:
        """Called once, before the first job."""
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Does all jobs, in any order; every job is in exactly one outcome."""
        ...

    def close(self) -> None: ...


def do(world: World, job: Job) -> tuple[Packet, str | None]:
    """One job, here and now: the upload, and what is wrong with it if anything is."""
    shard = world.shards.train(job.device).to(world.device)
    own = world.states.get(job.device)
    try:
        up, kept = world.client.local(world.task, job.down, shard, own, job.context)
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError) as error:
        raise RunError(
            f"{job.device} failed in round {job.context.round + 1} with {len(shard)} samples: {error}"
        ) from error
    problem = world.servers[job.node].check(world.task, up)
    if problem is None:
        world.states.put(job.device, kept)
    return up, problem


@dataclass
class Folding:
    """Combines the uploads of one node's jobs as they come."""

    node: str
    server: Server
    total: Packet | None = None
    sent: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, device: str, up: Packet, problem: str | None) -> None:
        if problem is None:
            try:
                self.total = fold(self.server.reducer, self.total, device, up)
            except (ValueError, KeyError) as error:
                problem = str(error)
        if problem is None:
            self.sent[device] = up.nbytes
        else:
            self.refused[device] = problem

    def outcome(self) -> Outcome:
        return Outcome(self.node, self.total, self.sent, self.refused, folded=True)

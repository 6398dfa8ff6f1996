"""What engines work on: jobs in, outcomes out. Same jobs, same outcomes; only the where and the how differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from undergrowth.core import (
    Client,
    Context,
    InputError,
    Packet,
    RunError,
    Server,
    Shard,
    State,
    Task,
    WeightedMean,
    describe_misfit,
    not_finite,
)  # fmt: skip
from undergrowth.engines.samples import Samples, Shards
from undergrowth.engines.states import States
from undergrowth.exchange import Links

TOGETHER = 64  # uploads that a GPU combines at a time
HELD = 2**30  # bytes of uploads that wait for that


@dataclass(frozen=True)
class Settings:
    """How an engine works. An engine looks at what concerns it."""

    workers: int | None = None  # None: as many as the machine has cores; on GPUs, as many as keep them busy
    devices: tuple[str, ...] = ("cpu",)  # torch devices, dealt to the workers in turn
    placement: str = "bu"  # which worker does which job: rr, srr, bu, lb or lpt
    stack: bool = False  # worker processes compute many clients at once, as the engine `vector` does
    chunk: int | None = None  # clients computed at once; None: as many as fit
    address: str | None = None  # of a Ray cluster; None: this machine
    tf32: bool = False  # whether a GPU may take shorter numbers in matrix products


def set_torch(tf32: bool, threads: int = 1) -> None:
    """How torch computes in a run. A worker has one thread: there is one a core, and sums are those of one thread."""
    torch.set_num_threads(threads)
    # Torch's own default differs between matrix products and convolutions; here both do what the run says.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    # Else cuDNN may add up in another order each time, and one seed would not give the same bits twice.
    torch.backends.cudnn.deterministic = True


@contextmanager
def torch_restored() -> Iterator[None]:
    """Afterwards torch computes as it did before, and on the CPU draws as if nothing had been."""
    cuda, cudnn, random = torch.backends.cuda, torch.backends.cudnn, torch.get_rng_state()
    before = torch.get_num_threads(), cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before[1:]
        torch.set_rng_state(random)


class Job(NamedTuple):  # a tuple, because a simulation makes millions of them
    """One device's work. With `fold`, its upload may be combined with those of other jobs of the same node."""

    node: str
    device: str
    down: Packet
    context: Context
    fold: bool = False
    limit: int | None = None  # steps after which it stops and sends what it has


@dataclass(frozen=True)
class Outcome:
    """An upload, or several combined ones, or (`up` is None) nothing but refusals."""

    node: str
    up: Packet | None
    sent: Mapping[str, int] = field(default_factory=dict)  # device → bytes of its upload, for all in `up`
    refused: Mapping[str, str] = field(default_factory=dict)  # device → what is wrong with its upload
    scalars: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # device → those of its upload
    folded: bool = False


@dataclass
class World:
    """What stays the same through a run, and the devices' own states."""

    task: Task
    client: Client
    servers: Mapping[str, Server]  # by node: how uploads are checked and combined
    shards: Shards
    states: States = field(default_factory=States)
    links: Links = field(default_factory=Links)
    device: str = "cpu"  # the torch device that jobs run on
    samples: Samples = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.samples = Samples(self.shards, self.device)


class Engine(Protocol):
    def open(self, world: World) -> None:
        """Called once, before the first job."""
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Does all jobs, in any order; every job is in exactly one outcome."""
        ...

    def facts(self) -> Mapping[str, float]:
        """What the last `run` says of itself, for the record: seconds between workers, jobs that were not batched."""
        ...

    def close(self) -> None:
        """Lets go of everything it holds. May be called twice."""
        ...


@dataclass(frozen=True)
class Done:
    """A job that was done: the upload as the server gets it, its bytes on the link, and what the device keeps."""

    up: Packet
    size: int
    own: State
    residual: State
    problem: str | None  # why the upload cannot be used


def do(world: World, job: Job, own: State, residual: State) -> Done:
    """One job, here and now, with what the device has kept."""
    shard: Shard | None = None
    limited = {} if job.limit is None else {"limit": job.limit}
    try:
        shard = world.samples.of(job.device)
        up, kept = world.client.local(world.task, job.down, shard, own, job.context, **limited)
        return delivered(world, job, up, kept, residual, checked=True)
    except InputError:
        raise
    except Exception as error:
        raise failed(job, shard, error) from error


def failed(job: Job, shard: Shard | None, error: Exception) -> RunError:
    """The sentence for a client that raised; some errors are nothing but a word, so their kind is told too."""
    told = repr(error) if isinstance(error, KeyError) or not str(error) else str(error)
    samples = "" if shard is None else f" with {len(shard)} samples"
    return RunError(f"{job.device} failed in round {job.context.round + 1}{samples}: {told}")


def delivered(world: World, job: Job, up: Packet, kept: State, residual: State, checked: bool) -> Done:
    """An upload as it comes out of its link. With `checked`, its values are looked at too."""
    up, size, residual = world.links.up(up, job.down.tensors, residual, job.context)
    problem = (not_finite(up) if checked else None) or world.servers[job.node].check(world.task, up)
    return Done(up, size, kept, residual, problem)


class Folding:
    """Combines the uploads of one node's jobs as they come, or on a GPU some at a time."""

    def __init__(self, node: str, server: Server, total: Packet | None = None) -> None:
        self.node = node
        self.server = server
        self._parts: list[Packet] = []  # that are not combined yet
        self._most = 1  # of these
        self.sent: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.scalars: dict[str, Mapping[str, float]] = {}
        if total is not None:
            self._take(total)

    @property
    def total(self) -> Packet | None:
        reducer = self.server.reducer
        if len(self._parts) == 2:
            self._parts = [reducer.merge(*self._parts)]
        elif len(self._parts) > 2 and isinstance(reducer, WeightedMean):
            self._parts = [reducer.merge_all(self._parts)]
        return self._parts[0] if self._parts else None

    def add(self, device: str, done: Done) -> bool:
        """False: the upload is refused."""
        problem = done.problem
        if problem is None:
            try:
                self._take(self.server.reducer.lift(device, done.up, 0))
            except (ValueError, KeyError) as error:
                problem = describe_misfit(error)
        if problem is not None:
            self.refused[device] = problem
            return False
        self.sent[device] = done.size
        self.scalars[device] = done.up.scalars
        return True

    def _take(self, one: Packet) -> None:
        total = self._parts[0] if self._parts else None
        if total is None:
            can_wait = type(self.server.reducer) is WeightedMean and _on_a_gpu(one)
            self._most = min(TOGETHER, HELD // max(1, one.nbytes)) if can_wait else 1
            self._parts = [one]
        elif self._most > 2 and one.signature == total.signature:
            self._parts.append(one)
            if len(self._parts) == self._most:
                self._parts = [self.total or one]  # at once: a GPU may still be at work on others
        else:
            self._parts = [self.server.reducer.merge(self.total or total, one)]

    def outcome(self) -> Outcome:
        return Outcome(self.node, self.total, self.sent, self.refused, self.scalars, folded=True)


def _on_a_gpu(packet: Packet) -> bool:
    return all(value.is_cuda for value in packet.tensors.values())


def settled(world: World, done: Iterable[tuple[Job, Done]]) -> Iterator[Outcome]:
    """The outcomes of jobs that were done: combined where they may be; what devices keep goes to their states."""
    sums: dict[str, Folding] = {}
    for job, one in done:
        used = one.problem is None
        if job.fold:
            if job.node not in sums:
                sums[job.node] = Folding(job.node, world.servers[job.node])
            used = sums[job.node].add(job.device, one)
        elif one.problem is None:
            yield Outcome(job.node, one.up, {job.device: one.size})
        else:
            yield Outcome(job.node, None, refused={job.device: one.problem})
        if used:
            world.states.put(job.device, one.own, one.residual)
    for total in sums.values():
        yield total.outcome()

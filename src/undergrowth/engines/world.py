"""The contract between a driver and an engine: jobs in, outcomes out.

All engines return the same outcomes for the same jobs, up to the order of float sums. They differ in where and how
they compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from undergrowth.core import Client, Context, Packet, Server, Task
from undergrowth.engines.samples import Samples, Shards
from undergrowth.engines.states import States
from undergrowth.exchange import Links


@dataclass(frozen=True)
class EngineSettings:
    """Options of an engine. Each engine reads those that apply to it."""

    workers: int | None = None  # None: one per core; on a GPU, as many as its memory and the cores allow
    torch_devices: tuple[str, ...] = ("cpu",)  # assigned to the workers in turn
    placement: str = "bu"  # which worker runs which job: rr, srr, bu, lb or lpt
    stack: bool = False  # worker processes compute many clients at once, as the engine `vector` does
    chunk: int | None = None  # clients computed at once; None: as many as fit
    address: str | None = None  # of a Ray cluster; None: this machine
    tf32: bool = False  # whether a GPU may use TF32 in matrix products
    modules: tuple[str, ...] = ()  # modules of the user, which other machines cannot import


class Job(NamedTuple):  # a tuple, because a simulation creates millions of them
    """The work of one device. `combine`: its upload may be combined with those of other jobs of the same node."""

    node: str
    device: str
    down: Packet
    context: Context
    combine: bool = False
    limit: int | None = None  # steps after which the client stops and sends what it has
    root_round: int = 0  # the round of the root in which the device was asked, for samples that change


@dataclass(frozen=True)
class Outcome:
    """One upload, or several combined ones; `up` is None if every upload was refused."""

    node: str
    up: Packet | None
    sent: Mapping[str, int] = field(default_factory=dict)  # device → bytes of its upload, for all uploads in `up`
    refused: Mapping[str, str] = field(default_factory=dict)  # device → what is wrong with its upload
    scalars: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # device → scalars of its upload
    combined: bool = False
    refused_bytes: Mapping[str, int] = field(default_factory=dict)  # device → bytes of its refused upload


@dataclass
class World:
    """What stays the same during a run, and the states that devices keep."""

    task: Task
    client: Client
    servers: Mapping[str, Server]  # node → the server that checks and combines its uploads
    shards: Shards
    states: States = field(default_factory=States)
    links: Links = field(default_factory=Links)
    torch_device: str = "cpu"  # where jobs run
    samples: Samples = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.samples = Samples(self.shards, self.torch_device)


class Engine(Protocol):
    """Runs jobs. Constructing an engine starts nothing: no process, file or socket."""

    def open(self, world: World) -> None:
        """Called once, before the first job."""
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Runs all jobs, in any order; every job is part of exactly one outcome."""
        ...

    def facts(self) -> Mapping[str, float]:
        """Figures about the last `run` for the history, such as the number of workers."""
        ...

    def close(self) -> None:
        """Releases everything the engine holds. May be called twice."""
        ...

"""A rehearsal: a few rounds of a run without training, in which packets have sizes but no values.

It prices a tree. It uses the nodes, the clock and the simulation of a run, so that the rules for waiting, dropping and
transfers exist once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch

from undergrowth.core import Ask, Context, Node, Packet, Plan, Progress, Reducer, Server, State, Task, View
from undergrowth.core.asks import Answer
from undergrowth.core.commands import Command, Drop, RoundEnd
from undergrowth.core.names import MODEL
from undergrowth.core.server_calls import next_plan, next_state
from undergrowth.devices.meter import Meter
from undergrowth.engines import Job, Outcome, States, World
from undergrowth.exchange import Entry
from undergrowth.learning.own_training import BETWEEN_ROUNDS
from undergrowth.runs.federation import Federation
from undergrowth.runs.preview import gets_same_again
from undergrowth.simulation import FleetClock, Simulation

MAX_ROUNDS = 100  # of an asynchronous root: the figures are means over the run, or over its first rounds


@dataclass(frozen=True)
class Rehearsal:
    """The priced rounds of the root: how many, their seconds, their nodes, and their entries in the ledger."""

    rounds: int
    seconds: float
    nodes: Mapping[str, RehearsedNode]
    entries: Sequence[Entry]


def rehearse(federation: Federation, again: bool = False) -> Rehearsal:
    """Simulates a typical round of a synchronous root, or the rounds of an asynchronous one.

    A round comes before the typical one if that differs from the first: if the server says so, if devices train
    between rounds, and with `again` (see `price_devices`) if they keep something.
    """
    root = federation.driver.root
    root.initialise()
    steady = root.server.steady_state(root.task, root.state)
    between = BETWEEN_ROUNDS in federation.world.servers
    again, first = again and gets_same_again(federation), 0
    if root.server.asynchronous:
        rounds = min(root.cycles, MAX_ROUNDS)
    else:
        typical, _ = federation.world.links.down(next(iter(federation.first_round.packets.values())))
        keeps = again and bool(federation.clock.tracer.state_after(typical))
        first = int(steady is not root.state or between or keeps)
        rounds = first + 1
    world = replace(federation.world, states=States(torch_device=federation.world.torch_device))
    clock = federation.clock.undisturbed(world.states)
    uploads = Uploads(federation)
    kept = {MODEL: federation.task.model.initial(0)} if between else {}
    nodes = {
        name: RehearsedNode(
            name, RehearsedServer(name, node.server, uploads, steady if node.is_root else None), node.task,
            node.children, cycles=rounds if node.is_root else node.cycles, seed=node.seed, is_root=node.is_root,
            nodes=node.nodes, knowledge=clock, devices=node.devices, samples=node.samples,
        )
        for name, node in federation.nodes.items()
    }  # fmt: skip
    nodes[root.name].adopt_state(root.state)
    if clock.root_round is not None:
        clock.root_round = lambda: nodes[root.name].round
    engine = RehearsedEngine(world, clock, uploads, kept, again)
    simulation = Simulation(
        nodes, federation.topology.parents, engine, world, clock, federation.server_links, federation.server_training
    )
    for name, node in nodes.items():
        node.time = lambda: simulation.now
        if node.pauses:
            node.trains = federation.server_training[name].seconds
    began, done = 0.0, 0
    for ended in simulation.rounds():
        done += len(ended)
        if done == first:
            began = simulation.now
            for node in nodes.values():
                node.seconds, node.late = 0.0, 0
    entries = [entry for entry in simulation.ledger.take() if entry.round > first]
    return Rehearsal(rounds - first, (simulation.now - began) / (rounds - first), nodes, entries)


@dataclass
class RehearsedNode(Node):
    """A node that records how long it works on an ask of its parent, how many children it asks, and which are late."""

    time: Callable[[], float] = float  # the present moment
    seconds: float = 0.0  # from an ask of its parent to its answer, or until it is given up; the longest
    asked: int = 0  # children that are at work at one time
    trains: float = 0.0  # seconds between the end of its rounds and its answer
    late: int = 0  # children that miss its deadline in one round
    _began: float = 0.0

    def start(self, ask: Ask | None = None) -> list[Drop]:
        dropped = super().start(ask)
        self._began = self.time()
        return dropped

    def stop(self) -> list[Drop]:
        self._note_seconds(self.left > 0)
        return super().stop()

    def advance(self, waits: bool = True) -> list[Command]:
        expired = self._expired
        commands = super().advance(waits)
        for command in commands:
            if isinstance(command, RoundEnd) and expired:
                self.late = max(self.late, len(command.dropped))
            self._note_seconds(isinstance(command, Answer), self.trains)
        self.asked = max(self.asked, len(self._out))
        return commands

    def _note_seconds(self, over: bool, then: float = 0.0) -> None:
        if over:
            self.seconds = max(self.seconds, self.time() + then - self._began)


class SendersReducer(Reducer):
    """Collects the names of the senders, as tags without a value."""

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        return Packet(tags={sender: ""})

    def merge(self, a: Packet, b: Packet) -> Packet:
        return Packet(tags={**a.tags, **b.tags})

    def relay(self, sender: str, partial: Packet, age: int) -> Packet:
        return self.lift(sender, partial, age)


@dataclass(frozen=True)
class RehearsedServer(Server):
    """A server that sends what `server` sends, and learns nothing. `steady`: its state after the first round.

    An error in a function of `server` names that one.
    """

    name: str
    server: Server
    uploads: Uploads
    steady: State | None = None
    reducer = SendersReducer()

    @property
    def accepts_partial(self) -> bool:
        return self.server.accepts_partial

    @property
    def asynchronous(self) -> bool:
        return self.server.asynchronous

    @property
    def waits_for_all(self) -> bool:
        return self.server.waits_for_all

    def init(self, task: Task, context: Context) -> State:
        return next_state(self.server, "init", task, context)

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return next_state(self.server, "adopt", task, state, down, context)

    def phases(self, task: Task, context: Context) -> Sequence[str]:
        return self.server.phases(task, context)

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        children = {*view.idle, *view.out}  # nobody is away in a rehearsal
        return next_plan(self.server, children, task, state, view, context)

    def ready(self, progress: Progress) -> bool:
        return self.server.ready(progress)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        return state if self.steady is None else self.steady

    def report(self, task: Task, state: State, partial: Packet | None, context: Context) -> Packet | None:
        """A packet with the size of the answer. Its type is uint8: only floats are checked for finite values."""
        if partial is None:
            return None
        size = self.uploads.answer_bytes(self.name, self.server, tuple(partial.tags))
        return Packet({"": torch.empty(size, dtype=torch.uint8, device="meta")})


@dataclass
class RehearsedEngine:
    """An engine whose jobs are done at once.

    `kept`: what a device keeps after its first job; with `again` that is what its client returns.
    """

    world: World
    clock: FleetClock
    uploads: Uploads
    kept: State
    again: bool = False

    def open(self, world: World) -> None:
        """There is nothing to open."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        combined: dict[str, dict[str, int]] = {}
        for job in jobs:
            if job.node == BETWEEN_ROUNDS:
                continue
            size = self.clock.work(job.device, job.down).bytes_up
            self.uploads.add(job.device, job.down)
            kept = self.clock.tracer.state_after(job.down) if self.again else self.kept
            if kept:
                self.world.states.put(job.device, kept)
            if job.combine:
                combined.setdefault(job.node, {})[job.device] = size
            else:
                yield Outcome(job.node, Packet(), {job.device: size})
        for node, sent in combined.items():
            scalars: dict[str, dict[str, float]] = {device: {} for device in sent}
            yield Outcome(node, Packet(tags=dict.fromkeys(sent, "")), sent, scalars=scalars, combined=True)

    def facts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """There is nothing to close."""


@dataclass
class Uploads:
    """The forms of the last uploads and answers, on meta tensors, and how many bytes combined ones have."""

    federation: Federation
    _kinds: dict[str, Hashable] = field(default_factory=dict)  # device → the kind of its upload
    _below: dict[str, Counter[Hashable]] = field(default_factory=dict)  # node → kinds of uploads behind its answer
    _forms: dict[Hashable, Packet] = field(default_factory=dict)  # kind of upload, or node → the form of what it sends
    _latest: tuple[Packet, Hashable] | None = None
    _known: list[tuple[Reducer, tuple[Hashable, ...], int]] = field(default_factory=list)  # reducer, kinds → bytes

    def add(self, device: str, down: Packet) -> None:
        """Notes that a device which received `down` has sent its upload."""
        self._kinds[device] = self.kind(down)

    def kind(self, down: Packet) -> Hashable:
        """What the form of an upload depends on. Uploads of one kind have the same form."""
        if self._latest is None or self._latest[0] is not down:
            kind = (down.signature, tuple(down.scalars), tuple(down.tags.items()))
            if kind not in self._forms:
                self._forms[kind] = self.federation.clock.tracer.upload(down)
            self._latest = (down, kind)
        return self._latest[1]

    def answer_bytes(self, node: str, server: Server, children: Sequence[str]) -> int:
        """The bytes of the answer of a node that these children have sent something."""
        forms = {child: self._forms[self._kinds.get(child, child)] for child in children if self._has_form(child)}
        kinds: Counter[Hashable] = Counter()
        for child in children:
            kinds.update(self._below.get(child) or (self._kinds[child],))
        self._below[node] = kinds
        expected = server.expected_answer(node, forms) if forms else None
        if expected is not None:
            self._forms[node] = expected
        return self.combined_bytes(server.reducer, kinds) if expected is None else expected.nbytes

    def _has_form(self, child: str) -> bool:
        return child in self._kinds or child in self._forms

    def combined_bytes(self, reducer: Reducer, kinds: Counter[Hashable]) -> int:
        """The bytes of the partial result of uploads. A mean has as many for any number; a collection grows."""
        if not kinds:
            return 0
        one_of_each = self._merged(reducer, tuple(kinds))
        return one_of_each + sum(
            (number - 1) * (self._merged(reducer, (kind, kind)) - self._merged(reducer, (kind,)))
            for kind, number in kinds.items()
            if number > 1
        )

    def _merged(self, reducer: Reducer, kinds: tuple[Hashable, ...]) -> int:
        for known in self._known:
            if known[:2] == (reducer, kinds):
                return known[2]
        with Meter(guess=True):
            lifted = [reducer.lift(f"device-{n}", self._forms[kind], 0) for n, kind in enumerate(kinds)]
            size = reduce(reducer.merge, lifted).nbytes
        self._known.append((reducer, kinds, size))
        return size

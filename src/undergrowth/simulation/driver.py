"""The simulation: moves packets between nodes and devices in virtual time.

One queue holds everything that will happen. All events of one instant are told to the nodes before any node is
asked what to do next, so equal devices are equal however they are ordered. Device work is done when its result is
first needed, together with all other work that waits then: an engine gets as much at once as there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any, Protocol

from undergrowth.core import Alarm, Command, Context, Drop, Node, Packet, Report, RoundEnd, Send, State
from undergrowth.engines import Engine, Job, Outcome
from undergrowth.simulation.ledger import Entry, Ledger, Totals


@dataclass(frozen=True)
class Timing:
    """How long a job takes on a device, and what it costs there."""

    seconds_down: float = 0.0
    seconds_compute: float = 0.0
    seconds_up: float = 0.0
    flops: float = 0.0
    memory: int = 0
    joules: float = 0.0

    @property
    def seconds(self) -> float:
        return self.seconds_down + self.seconds_compute + self.seconds_up


class Clock(Protocol):
    def timing(self, device: str, down: Packet) -> Timing:
        """What it takes `device` to do what `down` asks for."""
        ...


@dataclass
class Exchange:
    """A child has been sent something and has not answered yet."""

    ticket: int  # tells an event of this exchange from one of an exchange that was given up
    entry: Entry
    outcome: Outcome | None = None  # an upload that is done and on its way


class Simulation:
    """Drives a tree of nodes. `run` yields the rounds of the root as they end."""

    def __init__(self, nodes: Mapping[str, Node], parents: Mapping[str, str], engine: Engine, clock: Clock) -> None:
        self.nodes = nodes
        self.parents = parents  # node → its parent, for all but the root
        self.root = next(node for node in nodes.values() if node.is_root)
        self.engine = engine
        self.clock = clock
        self.ledger = Ledger()
        self.now = 0.0
        self.jobs_done = 0
        self.work_seconds = 0.0  # wall time that the engine took
        self._events: list[tuple[float, int, str, str, Any]] = []  # time, ticket, kind, node, what
        self._tickets = 0
        self._exchanges: dict[str, Exchange] = {}  # by child
        self._waiting: dict[str, Job] = {}  # device → job that nobody has done yet
        self._folded: dict[str, list[Outcome]] = {}  # node → combined uploads on their way

    def run(self) -> Iterator[list[RoundEnd]]:
        """Yields each round of the root when it has ended (several at once if they end in the same instant)."""
        if not self._tickets:
            self.root.start()
            yield from self._advance([self.root.name])
        while self._events and not self.root.done:
            self.now = self._events[0][0]
            touched: dict[str, None] = {}
            while self._events and self._events[0][0] == self.now:
                _, ticket, kind, name, what = heapq.heappop(self._events)
                if self._happen(kind, self.nodes[name], ticket, what):
                    touched[name] = None
            yield from self._advance(touched)

    # What happens -------------------------------------------------------------------------------------------

    def _happen(self, kind: str, node: Node, ticket: int, what: Any) -> bool:
        """Tells a node of one event. False: the event is about something that was given up."""
        if kind == "packet":
            node.start(what)
        elif kind == "alarm":
            node.expire(what)
        elif kind == "report":
            return self._report(node, *what)
        elif kind == "group":
            if node.round != what:
                return False
            self._work()
            for outcome in self._folded.pop(node.name, ()):
                if outcome.up is not None:
                    node.receive_folded(tuple(outcome.sent), outcome.up)
                self._settle(node, outcome)
        elif kind == "upload":
            exchange = self._exchanges.get(what)
            if exchange is None or exchange.ticket != ticket:
                return False
            self._work()
            assert exchange.outcome is not None
            if exchange.outcome.up is not None:
                node.receive(what, exchange.outcome.up)
            self._settle(node, exchange.outcome)
        return True

    def _report(self, node: Node, child: str, up: Packet | None) -> bool:
        if child not in self._exchanges:
            return False
        if up is None:
            reason = "none of its children came back"
            node.lose(child, reason)
            self._close(child, outcome="lost", reason=reason)
        else:
            node.receive(child, up)
            self._close(child, bytes_up=up.nbytes)
        return True

    def _settle(self, node: Node, outcome: Outcome) -> None:
        for device, size in outcome.sent.items():
            self._close(device, bytes_up=size)
        for device, problem in outcome.refused.items():
            node.refuse(device, problem)
            self._close(device, outcome="refused", reason=problem)

    def _close(self, child: str, **what: Any) -> None:
        self.ledger.book(replace(self._exchanges.pop(child).entry, **{"round": self.root.round + 1, **what}))

    def _work(self) -> None:
        """Has the engine do everything that waits."""
        if not self._waiting:
            return
        jobs, self._waiting = list(self._waiting.values()), {}
        began = perf_counter()
        for outcome in self.engine.run(jobs):
            if outcome.folded:
                self._folded.setdefault(outcome.node, []).append(outcome)
            else:
                for device in (*outcome.sent, *outcome.refused):
                    self._exchanges[device].outcome = outcome
        self.work_seconds += perf_counter() - began
        self.jobs_done += len(jobs)

    # What follows -------------------------------------------------------------------------------------------

    def _advance(self, names: Iterable[str]) -> Iterator[list[RoundEnd]]:
        ended: list[RoundEnd] = []
        for name in names:
            node = self.nodes[name]
            ended.extend(self._carry_out(node, node.advance()))
        self.ledger.totals.simulated_seconds = self.now
        if ended:
            yield ended

    def _carry_out(self, node: Node, commands: list[Command]) -> list[RoundEnd]:
        ended: list[RoundEnd] = []
        sends: list[Send] = []
        seconds: float | None = None
        for command in commands:
            if isinstance(command, Send) and command.child in self.nodes:
                self._open(node, command, Timing())
                self._push(self.now, "packet", command.child, command.packet)
            elif isinstance(command, Send):
                sends.append(command)
            elif isinstance(command, Drop):
                self._waiting.pop(command.child, None)
                # The root has already turned to its next round when it drops somebody.
                self._close(command.child, outcome="late", round=self.root.round + (node is not self.root))
            elif isinstance(command, Alarm):
                seconds = command.seconds
                self._push(self.now + seconds, "alarm", node.name, command.round)
            elif isinstance(command, Report):
                self._push(self.now, "report", self.parents[node.name], (node.name, command.packet))
            elif isinstance(command, RoundEnd) and node is self.root:
                ended.append(command)
        if sends:
            self._start_devices(node, sends, seconds)
        return ended

    def _start_devices(self, node: Node, sends: list[Send], deadline: float | None) -> None:
        """Schedules the uploads. Those that nothing can depend on before the last one come as one event."""
        together = node.server.waits_for_all and not node.server.asynchronous
        last = self.now
        for send in sends:
            timing = self.clock.timing(send.child, send.packet)
            self._open(node, send, timing)
            if deadline is not None and timing.seconds > deadline and not node.server.asynchronous:
                continue  # it will be dropped: nobody needs its result
            context = Context(node.seed, send.child, send.round, send.turn)
            self._waiting[send.child] = Job(node.name, send.child, send.packet, context, fold=together)
            if together:
                last = max(last, self.now + timing.seconds)
            else:
                self._push(self.now + timing.seconds, "upload", node.name, send.child)
        if together:
            self._push(last, "group", node.name, sends[0].round)

    def _open(self, node: Node, send: Send, timing: Timing) -> None:
        self._tickets += 1
        entry = Entry(
            round=self.root.round, parent=node.name, child=send.child, outcome="arrived",
            bytes_down=send.packet.nbytes, start=self.now, **asdict(timing),
        )  # fmt: skip
        self._exchanges[send.child] = Exchange(self._tickets, entry)

    def _push(self, time: float, kind: str, node: str, what: Any) -> None:
        if kind == "upload":
            ticket = self._exchanges[what].ticket
        else:
            self._tickets += 1
            ticket = self._tickets
        heapq.heappush(self._events, (time, ticket, kind, node, what))

    # What is kept across a restart --------------------------------------------------------------------------

    def snapshot(self) -> State:
        """Everything that changes, as a tree that can be written to disk. Taken between two rounds."""
        return {
            "nodes": {name: node.snapshot() for name, node in self.nodes.items()},
            "now": self.now,
            "tickets": self._tickets,
            "jobs_done": self.jobs_done,
            "work_seconds": self.work_seconds,
            "totals": asdict(self.ledger.totals),
            "events": [list(event) for event in self._events],
            "exchanges": {
                child: [e.ticket, asdict(e.entry), e.outcome and vars(e.outcome)]
                for child, e in self._exchanges.items()
            },
            "waiting": {device: {**vars(job), "context": asdict(job.context)} for device, job in self._waiting.items()},
            "folded": {node: [vars(outcome) for outcome in outcomes] for node, outcomes in self._folded.items()},
        }

    def restore(self, kept: State) -> None:
        for name, node in self.nodes.items():
            node.restore(kept["nodes"][name])
        self.now, self._tickets = kept["now"], kept["tickets"]
        self.jobs_done, self.work_seconds = kept["jobs_done"], kept["work_seconds"]
        self.ledger = Ledger(Totals(**kept["totals"]))
        self._events = [(time, ticket, kind, node, what) for time, ticket, kind, node, what in kept["events"]]
        self._exchanges = {
            child: Exchange(ticket, Entry(**entry), outcome and Outcome(**outcome))
            for child, (ticket, entry, outcome) in kept["exchanges"].items()
        }
        self._waiting = {
            device: Job(**{**job, "context": Context(**job["context"])}) for device, job in kept["waiting"].items()
        }
        self._folded = {node: [Outcome(**outcome) for outcome in outcomes] for node, outcomes in kept["folded"].items()}

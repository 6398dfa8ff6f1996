"""The simulation: moves packets between nodes and devices in virtual time.

One queue holds everything that will happen. All events of one instant are told to the nodes before any node is asked
what to do next, so equal devices are equal however they are ordered; and the nodes are asked from the bottom up, so
that what edge servers report in an instant counts before their parent ends its round in it. Device work is done when
its result is first needed, with all other work that waits then: an engine gets as much at once as there is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from time import perf_counter
from typing import Any

from undergrowth.core import Alarm, Command, Context, Drop, Node, Packet, Report, RoundEnd, Send, State
from undergrowth.engines import Engine, Job, Outcome
from undergrowth.links import Links
from undergrowth.simulation.clock import Clock, Timing
from undergrowth.simulation.exchange import Exchange, flat, unflat
from undergrowth.simulation.ledger import Entry, Ledger, Totals


class Simulation:
    """Drives a tree of nodes. `run` yields the rounds of the root as they end."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        parents: Mapping[str, str],
        engine: Engine,
        clock: Clock,
        links: Links | None = None,
    ) -> None:
        self.nodes = nodes
        self.parents = parents  # node → its parent, for all but the root
        self.root = next(node for node in nodes.values() if node.is_root)
        self._depths = {name: self._depth(name) for name in nodes}
        self.engine = engine
        self.clock = clock
        self.links = links or Links()
        self.ledger = Ledger()
        self.now = 0.0
        self.jobs_done = 0
        self.work_seconds = 0.0  # wall time that the engine took
        self._events: list[tuple[float, int, str, str, Any]] = []  # time, ticket, kind, node, what
        self._tickets = 0
        self._exchanges: dict[str, Exchange] = {}  # by child
        self._waiting: dict[str, float] = {}  # device whose job nobody has done yet → when it is surely needed
        self._folded: dict[str, list[Outcome]] = {}  # node → combined uploads on their way

    def run(self) -> Iterator[list[RoundEnd]]:
        """Yields each round of the root when it has ended (several at once if they end in the same instant)."""
        if not self._tickets:
            self.root.start()
            yield from self._advance(self.root)
        touched: dict[str, None] = {}  # nodes that were told something and not asked yet; none when a round is yielded
        while (self._events or touched) and not self.root.done:
            if not touched:
                self.now = self._events[0][0]
            while self._events and self._events[0][0] == self.now:
                _, ticket, kind, name, what = heapq.heappop(self._events)
                if self._happen(kind, self.nodes[name], ticket, what):
                    touched[name] = None
            if touched:
                deepest = max(touched, key=self._depths.__getitem__)
                del touched[deepest]
                yield from self._advance(self.nodes[deepest])

    def _depth(self, name: str) -> int:
        return 1 + self._depth(self.parents[name]) if name in self.parents else 0

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
            outcomes = self._folded.pop(node.name, [])
            for outcome in outcomes:
                if outcome.up is not None:
                    node.receive_folded(outcome.scalars, outcome.up)
            self._settle(node, outcomes)
        elif kind in ("upload", "lost"):
            exchange = self._exchanges.get(what)
            if exchange is None or exchange.ticket != ticket:
                return False
            if kind == "lost":
                node.lose(what, exchange.timing.lost)
                self._close(what, "lost", exchange.timing.lost)
            else:
                self._upload(node, what, exchange)
        return True

    def _upload(self, node: Node, device: str, exchange: Exchange) -> None:
        self._work()
        outcome = exchange.outcome
        assert outcome is not None
        if outcome.up is not None:
            node.receive(device, outcome.up)
            problem = node.problem(device)
            if problem is not None:
                outcome = Outcome(outcome.node, None, refused={device: problem})
        self._settle(node, [outcome])

    def _report(self, node: Node, child: str, up: Packet | None) -> bool:
        if child not in self._exchanges:
            return False
        if up is None:
            reason = "none of its children came back"
            node.lose(child, reason)
            self._close(child, "lost", reason)
            return True
        node.receive(child, up)
        problem = node.problem(child)
        if problem is None:
            self._close(child, "arrived", bytes_up=up.nbytes)
        else:
            self._close(child, "refused", problem)
        return True

    def _settle(self, node: Node, outcomes: list[Outcome]) -> None:
        """Books what came, in the order in which the devices were asked: an engine does them in any order."""
        sent = {device: size for outcome in outcomes for device, size in outcome.sent.items()}
        refused = {device: problem for outcome in outcomes for device, problem in outcome.refused.items()}
        for device in sorted((*sent, *refused), key=lambda device: self._exchanges[device].ticket):
            if device in sent:
                self._close(device, "arrived", bytes_up=sent[device])
            else:
                node.refuse(device, refused[device])
                self._close(device, "refused", refused[device])

    def _close(self, child: str, outcome: str, reason: str = "", bytes_up: int = 0, round: int | None = None) -> None:
        exchange = self._exchanges.pop(child)
        timing = exchange.timing
        if outcome == "late":
            timing = timing.cut(self.now - exchange.start)._replace(lost="")
        if child not in self.nodes:
            self.clock.settle(child, timing)
        self.ledger.book(
            Entry(
                self.root.round + 1 if round is None else round,
                exchange.parent, child, outcome, reason, int(exchange.bytes_down * timing.received), bytes_up,
                timing.flops, timing.memory, exchange.start,
                timing.seconds_down, timing.seconds_compute, timing.seconds_up, timing.joules,
            )
        )  # fmt: skip

    def _work(self) -> None:
        """Has the engine do everything that waits and will be needed, as far as can be told now."""
        if not self._waiting:
            return
        devices = [device for device, needed in self._waiting.items() if needed <= self.now]
        for device in devices:
            del self._waiting[device]
        jobs = []
        for device in devices:
            exchange = self._exchanges[device]
            assert exchange.job is not None
            jobs.append(exchange.job)
            exchange.job = None
        began = perf_counter()
        for outcome in self.engine.run(jobs):
            if outcome.combined:
                self._folded.setdefault(outcome.node, []).append(outcome)
            else:
                for device in (*outcome.sent, *outcome.refused):
                    self._exchanges[device].outcome = outcome
        self.work_seconds += perf_counter() - began
        self.jobs_done += len(jobs)

    # What follows -------------------------------------------------------------------------------------------

    def _advance(self, node: Node) -> Iterator[list[RoundEnd]]:
        node.away = self.clock.away(self.now)
        ended = self._carry_out(node, node.advance())
        if node.asleep:
            wake = self.clock.next_on(self.now, node.children)
            if wake == math.inf:
                ended += self._carry_out(node, node.advance(waits=False))
            else:
                self._push(wake, "wake", node.name, None)
        self.ledger.totals.simulated_seconds = self.now
        if ended:
            yield ended

    def _carry_out(self, node: Node, commands: list[Command]) -> list[RoundEnd]:
        ended: list[RoundEnd] = []
        sends: list[Send] = []
        deadline: float | None = None
        for command in commands:
            if isinstance(command, Send) and command.child in self.nodes:
                self._open(node, command.child, command.packet.nbytes, Timing())
                self._push(self.now, "packet", command.child, command.packet)
            elif isinstance(command, Send):
                sends.append(command)
            elif isinstance(command, Drop):
                # The root has already turned to its next round when it drops somebody.
                self._drop(command.child, self.root.round + (node is not self.root))
            elif isinstance(command, Alarm):
                deadline = command.seconds
                self._push(self.now + deadline, "alarm", node.name, command.round)
            elif isinstance(command, Report):
                self._push(self.now, "report", self.parents[node.name], (node.name, command.packet))
            elif isinstance(command, RoundEnd) and node is self.root:
                ended.append(command)
        if sends:
            self._start_devices(node, sends, deadline)
        return ended

    def _drop(self, child: str, round: int) -> None:
        """Nobody waits for this child any more, nor for those below it."""
        self._waiting.pop(child, None)
        if child in self.nodes:
            for below in [name for name, exchange in self._exchanges.items() if exchange.parent == child]:
                self._drop(below, round)
            self._folded.pop(child, None)
            self.nodes[child].stop()
        self._close(child, "late", round=round)

    def _start_devices(self, node: Node, sends: list[Send], deadline: float | None) -> None:
        """Schedules the uploads. Those that nothing can depend on before the last one come as one event."""
        patient = not node.server.asynchronous
        together = node.server.waits_for_all and patient and node.enough is None
        partial = deadline if node.server.accepts_partial and patient else None
        due: list[tuple[float, str]] = []
        for send in sends:
            down, size = self.links.down(send.packet)
            context = Context(node.seed, send.child, send.round, send.turn)
            timing = self.clock.timing(send.child, down, size, context, self.now, partial)
            exchange = self._open(node, send.child, size, timing)
            if timing.lost:
                self._push(self.now + timing.seconds, "lost", node.name, send.child)
            elif deadline is None or timing.seconds <= deadline or not patient:
                exchange.job = Job(node.name, send.child, down, context, together, timing.limit)
                due.append((self.now + timing.seconds, send.child))
            # Who is later than the deadline will be dropped: nobody needs its result.
        needed = math.inf
        if patient and node.enough is not None and len(due) > node.enough:
            needed = sorted(due)[node.enough - 1][0]  # later ones count only if somebody before them is refused
        for time, device in due:
            self._waiting[device] = time if time > needed else self.now
            if not together:
                self._push(time, "upload", node.name, device)
        if together and due:
            self._push(max(due)[0], "group", node.name, sends[0].round)

    def _open(self, node: Node, child: str, bytes_down: int, timing: Timing) -> Exchange:
        self._tickets += 1
        exchange = Exchange(self._tickets, node.name, bytes_down, self.now, timing)
        self._exchanges[child] = exchange
        return exchange

    def _push(self, time: float, kind: str, node: str, what: Any) -> None:
        if kind in ("upload", "lost"):
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
            "clock": self.clock.snapshot(),
            "now": self.now,
            "tickets": self._tickets,
            "jobs_done": self.jobs_done,
            "work_seconds": self.work_seconds,
            "totals": asdict(self.ledger.totals),
            "events": [list(event) for event in self._events],
            "waiting": dict(self._waiting),
            "exchanges": {child: flat(exchange) for child, exchange in self._exchanges.items()},
            "folded": {node: [vars(outcome) for outcome in outcomes] for node, outcomes in self._folded.items()},
        }

    def restore(self, kept: State) -> None:
        for name, node in self.nodes.items():
            node.restore(kept["nodes"][name])
        self.clock.restore(kept["clock"])
        self.now, self._tickets = kept["now"], kept["tickets"]
        self.jobs_done, self.work_seconds = kept["jobs_done"], kept["work_seconds"]
        self.ledger = Ledger(Totals(**kept["totals"]))
        self._events = [(time, ticket, kind, node, what) for time, ticket, kind, node, what in kept["events"]]
        self._waiting = dict(kept["waiting"])
        self._exchanges = {child: unflat(one) for child, one in kept["exchanges"].items()}
        self._folded = {node: [Outcome(**outcome) for outcome in outcomes] for node, outcomes in kept["folded"].items()}

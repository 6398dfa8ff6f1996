"""The simulation: moves packets between nodes and devices in virtual time.

One queue holds all future events. The nodes receive all events of an instant before any node acts, so that the order
of devices with equal times does not matter; then the nodes act from the bottom up, so that the answer of an edge server
counts before its parent ends a round in the same instant. A device's work is done when its result is first needed,
together with all other work that is due by then: an engine gets as many jobs at once as possible.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from undergrowth.core import Context, State
from undergrowth.core.asks import Answer, Ask, AskId, Lost, Receipt, Refused
from undergrowth.core.commands import Command, Deadline, Drop, RoundEnd
from undergrowth.core.node import Node
from undergrowth.devices import FREE, LinkProfile
from undergrowth.engines import Engine, Job, Outcome, World
from undergrowth.exchange import Entry, Ledger, Totals
from undergrowth.simulation.clock import Clock, Timing, booked_values
from undergrowth.simulation.open_asks import OpenAsk, count_bytes, read_content, write_content
from undergrowth.simulation.own_training import OwnTraining
from undergrowth.simulation.pending import Pending
from undergrowth.simulation.server_training import TRAINED, TrainingCost, TrainingServers
from undergrowth.simulation.work import Work


class Simulation:
    """A driver in virtual time. `parents` maps every node but the root to its parent.

    `server_links` maps nodes to the links to their parents. The link of a node without an entry takes no time.
    `server_training` maps nodes to what the training of their servers costs. Without an entry it takes no time.
    """

    def __init__(
        self, nodes: Mapping[str, Node], parents: Mapping[str, str], engine: Engine, world: World, clock: Clock,
        server_links: Mapping[str, LinkProfile] | None = None,
        server_training: Mapping[str, TrainingCost] | None = None,
    ) -> None:  # fmt: skip
        self.nodes = nodes
        self.server_links = server_links or {}
        self.parents = parents
        self.root = next(node for node in nodes.values() if node.is_root)
        self.engine = engine
        self.world = world
        self.clock = clock
        self.ledger = Ledger()
        self.now = 0.0
        self._depths = {name: self._depth(name) for name in nodes}
        self._pending = Pending()
        self._own_training = OwnTraining(nodes, world, clock)
        self._training = TrainingServers(nodes, server_training or {}, self._pending)
        self._held: list[RoundEnd] = []  # the round of the root after which its server trains
        self.work = Work(engine, self._pending)

    def start(self) -> None:
        self.engine.open(self.world)

    def close(self) -> None:
        self.engine.close()

    def rounds(self) -> Iterator[Sequence[RoundEnd]]:
        if not self._pending.order:
            self.root.start()
            yield from self._advance(self.root)
        touched: dict[str, None] = {}  # nodes with news that have not acted yet; empty whenever a round is yielded
        while (self._pending.events or touched) and (self._held or not self.root.done):
            if not touched:
                self.now = self._pending.events[0][0]
            while self._pending.events and self._pending.events[0][0] == self.now:
                _, _, kind, name, content = heapq.heappop(self._pending.events)
                if self._tell(kind, self.nodes[name], content):
                    touched[name] = None
            if touched:
                deepest = max(touched, key=self._depths.__getitem__)
                del touched[deepest]
                if not self._training.pausing(deepest):
                    yield from self._advance(self.nodes[deepest])

    def stop(self) -> int:
        # The root has begun its next round in the same instant. The asks of that round are forgotten, and those of
        # earlier rounds, which only an asynchronous server has, are given up as after the last round of a run.
        number = self.root.round
        for child in [child for child in self._pending.asks if self._pending.asks[child].id.round == number]:
            if self._pending.asks[child].parent == self.root.name:
                del self._pending.asks[child]
                self._pending.waiting.pop(child, None)
        given_up = [drop for drop in self.root.stop() if drop.id.node in self._pending.asks]
        self._drop_all(given_up, number)
        return len(given_up)

    def facts(self) -> Mapping[str, float]:
        facts, self.work.facts = self.work.facts, {}
        return facts

    @property
    def clients_per_second(self) -> float:
        return self.work.jobs_done / max(self.work.seconds, 1e-9)

    def _depth(self, name: str) -> int:
        return 1 + self._depth(self.parents[name]) if name in self.parents else 0

    # Events ---------------------------------------------------------------------------------------------------

    def _tell(self, kind: str, node: Node, content: Any) -> bool:
        """Tells a node of one event. False: the event concerns something that was given up."""
        if kind == "ask":
            if node.name not in self._pending.asks or self._pending.asks[node.name].id != tuple(content[0]):
                return False
            self._drop_all(node.start(Ask(AskId(*content[0]), *content[1:])))
        elif kind == TRAINED:
            self._training.finish(node.name, self.now, self.root.round + (not self._held), self.ledger)
        elif kind == "deadline":
            node.expire(*content)
        elif kind == "node answers":
            return self._node_answers(node, Answer(AskId(*content[0]), read_content(*content[1])))
        elif kind == "group":
            if (node.round, node.phase) != tuple(content):
                return False
            self.work.run(self.now)
            self._book(node, self._pending.combined.pop(node.name, []))
        elif kind == "device answers":
            ask = self._pending.asks.get(content[0])
            if ask is None or ask.id != tuple(content):
                return False
            self._device_answers(node, ask)
        return True

    def _device_answers(self, node: Node, ask: OpenAsk) -> None:
        if ask.timing.lost:
            node.receive(Answer(ask.id, Lost(ask.timing.lost)))
            self._end(ask, "lost", ask.timing.lost)
            return
        self.work.run(self.now)
        assert ask.outcome is not None
        self._book(node, [ask.outcome])

    def _node_answers(self, node: Node, answer: Answer) -> bool:
        receipt = node.receive(answer)
        ask = self._pending.asks.get(answer.id.node)
        if ask is None or receipt not in (Receipt.TAKEN, Receipt.LOST, Receipt.REFUSED):
            return False
        content = answer.content
        if isinstance(content, Lost):
            self._end(ask, "lost", content.reason)
        elif receipt is Receipt.REFUSED:
            self._end(ask, "refused", node.problem(ask.id.node) or "", count_bytes(content))
        else:
            self._end(ask, "arrived", bytes_up=count_bytes(content))
        return True

    def _book(self, node: Node, outcomes: list[Outcome]) -> None:
        """Hands finished work to its node and books it, in the order in which the devices were asked."""
        sizes: dict[str, int] = {}
        open_asks = self._pending.asks
        for outcome in outcomes:
            sizes.update(outcome.sent)
            for device, problem in outcome.refused.items():
                sizes[device] = outcome.refused_bytes.get(device, 0)  # 0: from an older checkpoint
                node.receive(Answer(open_asks[device].id, Refused(problem)))
            if outcome.up is not None and outcome.combined:
                scalars = {open_asks[device].id: values for device, values in outcome.scalars.items()}
                node.receive_combined(scalars, outcome.up)
            elif outcome.up is not None:
                (device,) = outcome.sent
                node.receive(Answer(open_asks[device].id, outcome.up))
        for ask in sorted([open_asks[device] for device in sizes], key=attrgetter("order")):
            why = node.problem(ask.id[0])
            self._end(ask, "arrived" if why is None else "refused", why or "", sizes[ask.id[0]])

    def _end(self, ask: OpenAsk, outcome: str, reason: str = "", bytes_up: int = 0, round: int | None = None) -> None:
        """Closes an ask and books it in a round of the root, counted from 1: `round`, or the open one."""
        child, timing = ask.id[0], ask.timing
        del self._pending.asks[child]
        if outcome == "late":
            timing = timing.cut(max(0.0, self.now - ask.start))._replace(lost="")
        if child in self.nodes:
            timing = timing._replace(seconds_compute=0.0)  # it waited for its children, whose entries have the work
        else:
            self.clock.end_job(child, timing)
        round = self.root.round + 1 if round is None else round
        asked = (round, ask.parent, child, outcome, reason, int(ask.bytes_down * timing.received), bytes_up, ask.start)
        self.ledger.book(Entry._make(asked + booked_values(timing)))  # faster than 14 arguments

    # Commands -------------------------------------------------------------------------------------------------

    def _advance(self, node: Node) -> Iterator[Sequence[RoundEnd]]:
        node.away = self.clock.away(self.now)
        ended: list[RoundEnd] = []
        if node is self.root:
            ended = self._end_rounds(self._held, 0.0)
        self._training.update(node)
        ended += self._carry_out(node, node.advance())
        if node.asleep:
            wake = self.clock.next_on(self.now, node.children)
            if wake == math.inf:
                ended += self._carry_out(node, node.advance(waits=False))
            else:
                self._pending.push(wake, "wake", node.name, None)
        self.ledger.totals.simulated_seconds = self.now
        if ended:
            yield ended

    def _carry_out(self, node: Node, commands: list[Command]) -> list[RoundEnd]:
        """Does what a node commands; returns the rounds that ended, if the node is the root."""
        ended: list[RoundEnd] = []
        asks: list[Ask] = []  # of devices
        deadline: float | None = None
        wait = 0.0  # for the training of the node's server
        for command in commands:
            if isinstance(command, Ask):
                self._training.begin_beside(node, self.now)
                if command.child not in self.nodes:
                    asks.append(command)
                    continue
                self._ask_node(node, command)
            elif isinstance(command, Drop):
                asks = [ask for ask in asks if ask.id != command.id]
                self._drop(command.id, self._round_of_drop(node, command.id))
            elif isinstance(command, Deadline):
                deadline = command.seconds
                self._pending.push(self.now + deadline, "deadline", node.name, (command.round, command.phase))
            elif isinstance(command, Answer):
                self._answer_parent(node, command, wait)
            else:
                wait = self._training.begin_after(node, command, self.now)
                if node is self.root:
                    ended += self._end_rounds([command], wait)
        if asks:
            self._ask_devices(node, asks, deadline)
        return ended

    def _end_rounds(self, ended: list[RoundEnd], wait: float) -> list[RoundEnd]:
        """Ends rounds of the root, or holds them back if that takes `wait` seconds; returns those that have ended."""
        self._held = ended if wait else []
        if wait:
            return []
        for end in ended:
            self._own_training.run(self.engine, end.round, self.now, self._pending.asks, self.ledger)
        return ended

    def _round_of_drop(self, node: Node, id: AskId) -> int:
        """The round of the root, counted from 1, in which an ask that `node` dropped is booked."""
        if node is not self.root:
            return self.root.round + 1
        # The root may have begun its next round; an asynchronous root keeps asks open over several rounds.
        return self.root.round if node.server.asynchronous else id.round + 1

    def _drop(self, id: AskId, round: int) -> None:
        """Gives up an ask, and the asks of the nodes below it."""
        if id.node not in self._pending.asks:
            return  # it was given out and dropped in the same instant
        self._pending.waiting.pop(id.node, None)
        if id.node in self.nodes and not self._pending.asks[id.node].timing.seconds_up:  # else its answer is on the way
            self._pending.combined.pop(id.node, None)
            self.nodes[id.node].initialise()  # before its first round, which begins late if the ask is on the way
            self._drop_all(self.nodes[id.node].stop(), round)
        self._training.end(id.node, self.now, round, self.ledger)
        self._end(self._pending.asks[id.node], "late", round=round)

    def _drop_all(self, drops: Sequence[Drop], round: int | None = None) -> None:
        for drop in drops:
            self._drop(drop.id, self.root.round + 1 if round is None else round)

    def _ask_node(self, node: Node, ask: Ask) -> None:
        """Sends a packet to a node below. It starts when the whole packet is there."""
        size = ask.packet.nbytes
        timing = Timing(self.server_links.get(ask.child, FREE).seconds_down(size))
        self._pending.open(node.name, ask.id, size, self.now, timing)
        self._pending.push(self.now + timing.seconds_down, "ask", ask.child, (tuple(ask.id), ask.packet, ask.phase))

    def _answer_parent(self, node: Node, answer: Answer, wait: float) -> None:
        """Sends the answer of a node to its parent in `wait` seconds; it is there when the whole packet is."""
        seconds = self.server_links.get(node.name, FREE).seconds_up(count_bytes(answer.content))
        ask = self._pending.asks.get(node.name)
        if ask is not None and ask.id == answer.id:
            waited = max(0.0, self.now - ask.start - ask.timing.seconds_down)
            ask.timing = ask.timing._replace(seconds_compute=waited + wait, seconds_up=seconds)
        content = (tuple(answer.id), write_content(answer.content))
        self._pending.push(self.now + wait + seconds, "node answers", self.parents[node.name], content)

    def _ask_devices(self, node: Node, asks: Sequence[Ask], deadline: float | None) -> None:
        """Schedules the answers of devices. Answers that are not needed before the last one are one event."""
        synchronous = not node.server.asynchronous
        together = node.server.waits_for_all and synchronous and node.enough is None
        partial = deadline if node.server.accepts_partial and synchronous else None
        due: list[tuple[float, str]] = []
        # Looked up once: a simulation comes here a million times.
        timing_of, links, now, seed, parent = self.clock.timing, self.world.links, self.now, node.seed, node.name
        own_training = self._own_training
        for id, packet, _ in asks:
            device, round, turn = id
            down, size = links.down(packet)
            context = Context(seed, device, round, turn)
            wait = own_training.wait(device, now) if own_training.ready else 0.0
            start = now + wait
            timing = timing_of(device, down, size, context, start, None if partial is None else partial - wait)
            opened, seconds = self._pending.open(parent, id, size, start, timing), timing.seconds
            if timing.lost:
                self._pending.push(start + seconds, "device answers", parent, tuple(id))
            elif deadline is None or wait + seconds <= deadline or not synchronous:
                opened.job = Job(parent, device, down, context, together, timing.limit, self.root.round)
                due.append((start + seconds, device))
            # The node will drop a device that is later than the deadline: its result is not needed.
        surely_needed = math.inf  # later answers are needed only if an earlier one is refused
        if synchronous and node.enough is not None and len(due) > node.enough:
            surely_needed = sorted(due)[node.enough - 1][0]
        for time, device in due:
            self._pending.waiting[device] = time if time > surely_needed else now
            if not together:
                self._pending.push(time, "device answers", parent, tuple(self._pending.asks[device].id))
        if together and due:
            self._pending.push(max(due)[0], "group", parent, (asks[0].id.round, asks[0].phase))

    # Across a restart -----------------------------------------------------------------------------------------

    def snapshot(self) -> State:
        return {
            "nodes": {name: node.snapshot() for name, node in self.nodes.items()},
            "clock": self.clock.snapshot(),
            "now": self.now,
            "jobs_done": self.work.jobs_done,
            "work_seconds": self.work.seconds,
            "totals": asdict(self.ledger.totals),
            **({"ready": dict(self._own_training.ready)} if self._own_training.ready else {}),
            **self._training.snapshot(),
            **self._pending.snapshot(),
        }

    def restore(self, snapshot: State) -> None:
        for name, node in self.nodes.items():
            node.restore(snapshot["nodes"][name])
        self.clock.restore(snapshot["clock"])
        self.now = snapshot["now"]
        self.work.jobs_done, self.work.seconds = snapshot["jobs_done"], snapshot["work_seconds"]
        self.ledger = Ledger(Totals(**snapshot["totals"]))
        self._own_training.ready = dict(snapshot.get("ready", {}))
        self._training.restore(snapshot)
        self._pending.restore(snapshot)

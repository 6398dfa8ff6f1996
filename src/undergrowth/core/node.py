"""Node: an inner place of a topology, driven from outside.

Sans-IO: the driver tells it what happened (`start`, `receive`, `expire`, `stop`) and asks with `advance` what to do
next. It never waits and opens nothing. A simulation and a live runtime drive the same object, so what is simulated is
what is deployed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from undergrowth.core.asks import Answer, Ask, AskId, Lost, Partial, Receipt, Refused
from undergrowth.core.commands import Command, Deadline, Drop, RoundEnd
from undergrowth.core.context import Context
from undergrowth.core.packet import Packet
from undergrowth.core.pytree import State
from undergrowth.core.reducers import describe_misfit
from undergrowth.core.samplers import DeviceKnowledge, NoKnowledge, View
from undergrowth.core.server import InnerServer, Progress, Server, find_non_finite
from undergrowth.core.server_calls import call_server, next_plan, next_state
from undergrowth.core.task import Task


@dataclass
class Node:
    """A server rule, its state and its open asks.

    `cycles` is the number of rounds for one ask of the parent; for the root, of the whole run.
    """

    name: str
    server: Server
    task: Task
    children: tuple[str, ...]
    cycles: int
    seed: int = 0
    is_root: bool = True
    nodes: frozenset[str] = frozenset()  # children that are nodes
    knowledge: DeviceKnowledge = NoKnowledge()  # facts about the devices
    away: Container[str] = frozenset()  # children that cannot be reached now; set by the driver
    devices: int | None = None  # number of devices in the federation; None: of the children
    samples: int | None = None  # number of their samples; None: as many as `knowledge` says that the children have
    training: bool = False  # whether its server still trains, so that no round ends; set by the driver
    pauses: bool = False  # whether it waits after a round until the driver calls again, while its server trains

    state: State = field(default_factory=dict)
    round: int = 0
    phase: int = 0  # position of the open phase in the server's phases of this round
    left: int = 0  # rounds still to do for the current ask of the parent
    enough: int | None = None  # arrivals that end the open round; None: all
    _asked_by: AskId | None = None  # the parent's ask
    _open: bool = False
    _expired: bool = False
    _plans: int = 0  # how often the server has planned in this round; an asynchronous server plans repeatedly
    _partial: Packet | None = None
    _arrived: list[str] = field(default_factory=list)  # in this phase
    _before: list[str] = field(default_factory=list)  # children that arrived earlier, see `View.answered`
    _dropped: list[str] = field(default_factory=list)  # in earlier phases of this round
    _lost: dict[str, str] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _out: dict[str, AskId] = field(default_factory=dict)  # child → its open ask
    _turns: dict[str, int] = field(default_factory=dict)  # child → how often it was asked, see `_ask`
    _answered: dict[str, AskId] = field(default_factory=dict)  # child → the last ask that it answered
    _heard: dict[str, dict[str, float]] = field(default_factory=dict)  # child → scalars of its last upload
    _initialised: bool = False

    @property
    def done(self) -> bool:
        return self._initialised and self.left == 0

    def context(self) -> Context:
        asked = len(self._arrived) + len(self._lost) + len(self._refused) + len(self._out)
        return Context(self.seed, self.name, self.round, 0, *self._federation, asked)

    @cached_property
    def _federation(self) -> tuple[int, int]:
        """The numbers of devices and of samples in the federation."""
        devices, samples = self.devices, self.samples
        if devices is None:
            devices = len(self.children)
        if samples is None:
            samples = sum(self.knowledge.samples(child) for child in self.children if child not in self.nodes)
        return devices, samples

    @cached_property
    def _all_children(self) -> frozenset[str]:
        return frozenset(self.children)

    # What happened --------------------------------------------------------------------------------------------

    def start(self, ask: Ask | None = None) -> list[Drop]:
        """Begins the run (root, without an ask) or the work for the parent's ask; returns asks that it gives up.

        A repeated or older ask of the parent is ignored. A newer one ends the work for the one before it. Asks of one
        round of the parent, in different phases, are of one round of this node too. A node that only passes on has
        the parent's rounds, also if it missed some, so that a learning rate falls as in a star.
        """
        before = self._asked_by
        if ask is not None and before is not None and ask.id[1:] <= before[1:]:
            return []
        dropped = self.stop() if self.left else []
        self.initialise()
        if ask is not None:
            if ask.phase and before is not None and before.round == ask.id.round:
                self.round, self.phase = self.round - 1, ask.phase
            elif self.cycles == 1 and isinstance(self.server, InnerServer):
                self.round = ask.id.round
            self._asked_by = ask.id
            self.state = next_state(self.server, "adopt", self.task, self.state, ask.packet, self.context())
        self.left = self.cycles
        return dropped

    def initialise(self) -> None:
        """Makes the state before the first round, unless it is there already."""
        if not self._initialised:
            self.adopt_state(next_state(self.server, "init", self.task, self.context()))

    def adopt_state(self, state: State) -> None:
        """Takes `state` as the one before the first round, in place of the one that the server would make."""
        self.state, self._initialised = state, True

    def receive(self, answer: Answer) -> Receipt:
        """Takes an answer to an open ask into the round; ignores any other."""
        (child, _, _), content = answer
        asked = self._out.get(child)
        if asked != answer.id:
            return self._ignored(answer.id)
        del self._out[child]
        self._answered[child] = asked
        if isinstance(content, Lost):
            self._lost[child] = content.reason
            return Receipt.LOST
        problem = content.reason if isinstance(content, Refused) else self._combine(asked, content)
        if problem is not None:
            self._refused[child] = problem
            return Receipt.REFUSED
        return Receipt.TAKEN

    def receive_combined(self, uploads: Mapping[AskId, Mapping[str, float]], partial: Packet) -> Receipt:
        """Takes uploads of several children that an engine has checked and combined.

        `uploads` has the ask and the scalars of each. One ask that is not open spoils the whole: its upload cannot be
        taken out of the sum, so all of it is ignored.
        """
        out, answered, heard = self._out, self._answered, self._heard  # a simulation comes here a million times
        for ask in uploads:
            known = out.get(ask[0])
            if known is not ask and known != ask:
                return self._ignored(ask)
        for ask, scalars in uploads.items():
            child = ask[0]
            del out[child]
            answered[child] = ask
            heard[child] = dict(scalars)
        self._arrived.extend(child for child, _, _ in uploads)
        self._merge(partial)
        return Receipt.TAKEN

    def problem(self, child: str) -> str | None:
        """Why the upload of `child` was refused in the open round, or None."""
        return self._refused.get(child)

    def expire(self, round: int, phase: int = 0) -> None:
        """The deadline of that phase of that round has passed."""
        if (round, phase) == (self.round, self.phase) and self._open:
            self._expired = True

    def stop(self) -> list[Drop]:
        """Ends the work for the parent's ask without an answer; returns the asks that it gives up.

        What has arrived in the open round is given up too, so it does not count as heard.
        """
        for child in self._arrived:
            self._heard.pop(child, None)
        dropped = [Drop(ask) for ask in self._out.values()]
        self.left = 0
        self._out.clear()
        self._begin_round()
        return dropped

    def _ignored(self, ask: AskId) -> Receipt:
        if ask == self._answered.get(ask.node):
            return Receipt.REPEATED
        extra = max(self.phase, ask.round < self.round)  # asks of later phases are not counted as turns
        return Receipt.UNKNOWN if ask.turn >= self._turns.get(ask.node, 0) + extra else Receipt.LATE

    def _combine(self, ask: AskId, content: Packet | Partial) -> str | None:
        """Adds an upload or a partial result to the round; returns why that is not possible, or None."""
        reducer, age = self.server.reducer, self.round - ask.round
        packet = content.packet if isinstance(content, Partial) else content
        problem = find_non_finite(packet)
        if problem is None and not isinstance(content, Partial):
            problem = call_server(self.server, "check", self.task, packet, context=self.context())
        if problem is not None:
            return problem
        try:
            combine = reducer.relay if isinstance(content, Partial) else reducer.lift
            self._merge(combine(ask.node, packet, age))
        except (ValueError, KeyError) as error:
            return describe_misfit(error)
        self._arrived.append(ask.node)
        self._heard[ask.node] = dict(packet.scalars)
        return None

    def _merge(self, partial: Packet) -> None:
        self._partial = partial if self._partial is None else self.server.reducer.merge(self._partial, partial)

    # What to do -----------------------------------------------------------------------------------------------

    def advance(self, waits: bool = True) -> list[Command]:
        """All commands that follow from what happened since the last call.

        Ends every round that can end, so a node never waits without an open ask. Exception: if all children are
        `away`, the node asks none of them. Its driver calls again when that has changed, or with `waits` False if it
        never will; the remaining rounds then end without arrivals.
        """
        commands: list[Command] = []
        while self.left:
            if waits and self.asleep:
                break
            if not self._open:
                self._open = True
                self._ask(commands)
            elif self.server.asynchronous and not self._ready():
                self._ask(commands)  # replaces children that answered or were lost
            if self.training or (self._out and not self._ready()):
                break
            self._end(commands)
            if self.pauses and not self.phase:
                break
        return commands

    @property
    def asleep(self) -> bool:
        """Whether the node would ask now and all its children are away."""
        if not self.away or self._out or not self.left:
            return False
        asks = not self._open or (self.server.asynchronous and not self._ready())
        return asks and all(child in self.away for child in self.children)

    def _ready(self) -> bool:
        if self.training:
            return False
        progress = Progress(len(self._arrived), len(self._lost), len(self._out), self._expired, self.enough)
        return bool(call_server(self.server, "ready", progress, context=self.context()))

    def _ask(self, commands: list[Command]) -> None:
        idle = self.children
        if self._out or self.away or self._lost or self._refused:
            # A child that failed is not asked again in this round: it could fail in the same instant, for ever.
            gone = self._out.keys() | self._lost.keys() | self._refused.keys()
            idle = tuple(child for child in idle if child not in gone and child not in self.away)
        phases = call_server(self.server, "phases", self.task, self.context())
        phase = phases[self.phase] if self.phase < len(phases) else ""  # below the root, the packet says the phase
        view = View(idle, tuple(self._out), self.nodes, self.knowledge, self._heard, phase, self._before)
        context = self.context()._replace(turn=self._plans)
        plan = next_plan(self.server, self._all_children, self.task, self.state, view, context)
        self._plans += 1
        turns, out, round, number = self._turns, self._out, self.round, self.phase
        for child, packet in plan.packets.items():
            turn = turns.get(child, 0)
            if number:
                turn += number - 1  # not counted, so that random numbers of other rounds do not depend on it
            else:
                turns[child] = turn + 1
            out[child] = ask = AskId(child, round, turn)
            commands.append(Ask(ask, packet, number))
        self.enough = plan.enough
        if plan.deadline is not None:
            commands.append(Deadline(self.round, plan.deadline, self.phase))

    def _end(self, commands: list[Command]) -> None:
        """Ends the open phase and, if it is the last one or nobody arrived, the round."""
        partial = self._partial
        if partial is not None:
            phases = call_server(self.server, "phases", self.task, self.context())
            self.state = next_state(self.server, "step", self.task, self.state, partial, self.context())
            if self.phase + 1 < len(phases):
                self._next_phase(commands)
                return
        self.left -= 1
        dropped: tuple[AskId, ...] = ()
        if not self.server.asynchronous or not self.left:
            dropped = tuple(self._out.values())
            self._out.clear()
        commands.extend(Drop(ask) for ask in dropped)
        unanswered, scalars = (*self._dropped, *(ask.node for ask in dropped)), dict(partial.scalars) if partial else {}
        lost, refused = dict(self._lost), dict(self._refused)
        commands.append(RoundEnd(self.round, tuple(self._all_arrived()), lost, refused, unanswered, scalars))
        if not self.left and self._asked_by is not None:
            report = call_server(self.server, "report", self.task, self.state, partial, self.context())
            commands.append(Answer(self._asked_by, report or Lost("none of its children came back")))
        self._begin_round()

    def _all_arrived(self) -> list[str]:
        """The children that arrived in any phase of this round."""
        return list(dict.fromkeys((*self._before, *self._arrived))) if self.phase else self._arrived

    def _next_phase(self, commands: list[Command]) -> None:
        """Gives up open asks and turns to the next phase of the same round."""
        commands.extend(Drop(ask) for ask in self._out.values())
        self._dropped.extend(self._out)
        self._out.clear()
        self._close_phase()
        self.phase += 1

    def _begin_round(self) -> None:
        """Turns to a new round, which no deadline of an earlier one can end."""
        self._close_phase()
        self.round += 1
        self._plans = self.phase = 0
        self._dropped, self._lost, self._refused = [], {}, {}

    def _close_phase(self) -> None:
        self._before, self._arrived = self._all_arrived(), []
        self._open = self._expired = False
        self._partial = None

    # Across a restart -----------------------------------------------------------------------------------------

    def snapshot(self) -> State:
        """Everything that changes, as a pytree."""
        return {name.lstrip("_"): getattr(self, name) for name in _CHANGING}

    def restore(self, snapshot: State) -> None:
        snapshot = {"phase": 0, "before": [], "dropped": [], **snapshot}  # earlier versions had one phase
        for name in _CHANGING:
            setattr(self, name, snapshot[name.lstrip("_")])
        self._asked_by = self._asked_by and AskId(*self._asked_by)
        self._out = {child: AskId(*ask) for child, ask in self._out.items()}
        # Earlier versions kept only the turn.
        answered = {child: (child, self.round, a) if isinstance(a, int) else a for child, a in self._answered.items()}
        self._answered = {child: AskId(*ask) for child, ask in answered.items()}


_CHANGING = (
    "state", "round", "left", "phase", "_asked_by", "_open", "_expired", "_partial", "_arrived", "_before", "_dropped",
    "_lost", "_refused", "_out", "_turns", "_answered", "_heard", "enough", "_plans", "_initialised",
)  # fmt: skip

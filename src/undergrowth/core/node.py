"""Node: one server of the tree, without any input or output of its own.

A driver tells it what happened (`receive`, `lose`, `expire`) and then asks what to do (`advance`). The simulator
and the live runtime drive this very object, so what is simulated is what is deployed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from undergrowth.core.context import Context
from undergrowth.core.packet import Packet
from undergrowth.core.pytree import State
from undergrowth.core.reducers import fold, unusable
from undergrowth.core.selection import Knowledge, Nothing, View
from undergrowth.core.server import Progress, Server, not_finite
from undergrowth.core.task import Task


class Send(NamedTuple):  # a tuple, because a simulation makes millions of them
    """Hand this packet to a child."""

    child: str
    packet: Packet
    round: int
    turn: int


class Drop(NamedTuple):
    """This child is not waited for any more."""

    child: str


@dataclass(frozen=True)
class Alarm:
    """Call `expire(round)` after so many seconds."""

    round: int
    seconds: float


@dataclass(frozen=True)
class Report:
    """Hand this packet to the parent; None: tell it that this node is lost to its round."""

    packet: Packet | None


@dataclass(frozen=True)
class RoundEnd:
    """What became of a round. With nothing arrived it was abandoned and the state is as before."""

    round: int
    arrived: tuple[str, ...]
    lost: Mapping[str, str]  # child → why
    refused: Mapping[str, str]  # child → what was wrong with its upload
    dropped: tuple[str, ...]  # still out when the round ended, and given up
    scalars: Mapping[str, float]  # those of the combined uploads

    @property
    def abandoned(self) -> bool:
        return not self.arrived


Command = Send | Drop | Alarm | Report | RoundEnd


@dataclass
class Node:
    """A server rule, its state, and who has been asked for what.

    `cycles` is the number of rounds per packet of the parent; for the root, of the whole run.
    """

    name: str
    server: Server
    task: Task
    children: tuple[str, ...]
    cycles: int
    seed: int = 0
    is_root: bool = True
    nodes: frozenset[str] = frozenset()  # children that are nodes
    knows: Knowledge = Nothing()  # what it was told of its devices
    away: Container[str] = frozenset()  # children that cannot be reached at the moment; kept by the driver

    state: State = field(default_factory=dict)
    round: int = 0
    left: int = 0  # rounds still to do for the current packet; 0: nothing to do
    _open: bool = False
    _expired: bool = False
    _enough: int | None = None
    _asks: int = 0  # how often it has asked in this round: only an asynchronous server does so twice
    _total: Packet | None = None
    _arrived: list[str] = field(default_factory=list)
    _lost: dict[str, str] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _out: dict[str, int] = field(default_factory=dict)  # child → round in which it was asked
    _turns: dict[str, int] = field(default_factory=dict)  # child → how often it was asked
    _heard: dict[str, dict[str, float]] = field(default_factory=dict)  # child → scalars of its last upload
    _initialised: bool = False

    @property
    def done(self) -> bool:
        return self._initialised and self.left == 0

    def context(self) -> Context:
        return Context(self.seed, self.name, self.round)

    # What happened -----------------------------------------------------------------------------------

    def start(self, down: Packet | None = None) -> None:
        """Begins the run (root) or the work that the parent's packet asks for."""
        if not self._initialised:
            self.state = self.server.init(self.task, self.context())
            self._initialised = True
        if down is not None:
            self.state = self.server.adopt(self.task, self.state, down, self.context())
        self.left = self.cycles

    def receive(self, child: str, up: Packet) -> bool:
        """An upload has come. False: it was not waited for, and is ignored."""
        if child not in self._out:
            return False
        asked = self._out.pop(child)
        problem = not_finite(up) or self.server.check(self.task, up)
        if problem is None:
            try:
                self._total = fold(self.server.reducer, self._total, child, up, self.round - asked)
            except (ValueError, KeyError) as error:
                problem = unusable(error)
        if problem is None:
            self._arrived.append(child)
            self._heard[child] = dict(up.scalars)
        else:
            self._refused[child] = problem
        return True

    def receive_folded(self, scalars: Mapping[str, Mapping[str, float]], total: Packet) -> None:
        """Uploads of several children have come, checked and combined by the engine that ran them.

        `scalars`: those of each single upload.
        """
        children = tuple(scalars)
        self._heard.update((child, dict(values)) for child, values in scalars.items())
        for child in children:
            self._out.pop(child)
        self._total = total if self._total is None else self.server.reducer.merge(self._total, total)
        self._arrived.extend(children)

    def problem(self, child: str) -> str | None:
        """What was wrong with this child's upload in the open round, if it was refused."""
        return self._refused.get(child)

    def refuse(self, child: str, problem: str) -> None:
        """An engine found that this child's upload cannot be used."""
        if self._out.pop(child, None) is not None:
            self._refused[child] = problem

    def lose(self, child: str, reason: str) -> None:
        """This child will not answer."""
        if self._out.pop(child, None) is not None:
            self._lost[child] = reason

    def stop(self) -> None:
        """The parent does not wait for this node any more; its children are not waited for either."""
        self.left = 0
        self._out.clear()
        self._turn_over()

    def expire(self, round: int) -> None:
        """The deadline of that round has passed."""
        if round == self.round and self._open:
            self._expired = True

    # What to do ---------------------------------------------------------------------------------------

    def advance(self, waits: bool = True) -> list[Command]:
        """Everything that follows from what happened since the last call.

        Ends every round that can end, so it never leaves a node waiting for nobody; except that it asks nobody
        while all children are `away`: a driver that says so calls again when that has changed, or with `waits` False
        when it never will, and then the rounds that are left end without anybody.
        """
        commands: list[Command] = []
        while self.left:
            if waits and self.asleep:
                break
            if not self._open:
                self._open = True
                self._ask(commands)
            elif self.server.asynchronous and not self._ready():
                self._ask(commands)  # somebody came back or was lost: their place is free
            if self._out and not self._ready():
                break
            self._end(commands)
        return commands

    @property
    def asleep(self) -> bool:
        """Whether it would ask somebody now, and all are away."""
        if not self.away or self._out or not self.left:
            return False
        asks = not self._open or (self.server.asynchronous and not self._ready())
        return asks and all(child in self.away for child in self.children)

    @property
    def enough(self) -> int | None:
        """How many arrivals end the open round; None: all."""
        return self._enough

    def _ready(self) -> bool:
        lost = len(self._lost)
        return self.server.ready(Progress(len(self._arrived), lost, len(self._out), self._expired, self._enough))

    def _ask(self, commands: list[Command]) -> None:
        idle = self.children
        if self._out or self.away or self._lost or self._refused:
            # Who failed is not asked again before the next version: it might fail again in the same instant, for ever.
            gone = self._out.keys() | self._lost.keys() | self._refused.keys()
            idle = tuple(child for child in idle if child not in gone and child not in self.away)
        view = View(idle, tuple(self._out), self.nodes, self.knows, self._heard)
        plan = self.server.plan(self.task, self.state, view, self.context()._replace(turn=self._asks))
        self._asks += 1
        for child, packet in plan.sends.items():
            turn = self._turns.get(child, 0)
            self._turns[child] = turn + 1
            self._out[child] = self.round
            commands.append(Send(child, packet, self.round, turn))
        self._enough = plan.enough
        if plan.deadline is not None:
            commands.append(Alarm(self.round, plan.deadline))

    def _end(self, commands: list[Command]) -> None:
        total = self._total
        if total is not None:
            self.state = self.server.step(self.task, self.state, total, self.context())
        self.left -= 1
        dropped: tuple[str, ...] = ()
        if not self.server.asynchronous or not self.left:
            dropped = tuple(self._out)
            self._out.clear()
        commands.extend(Drop(child) for child in dropped)
        commands.append(
            RoundEnd(
                self.round,
                tuple(self._arrived),
                dict(self._lost),
                dict(self._refused),
                dropped,
                dict(total.scalars) if total else {},
            )
        )
        if not self.left and not self.is_root:
            commands.append(Report(self.server.report(self.task, self.state, total, self.context())))
        self._turn_over()

    def _turn_over(self) -> None:
        """To a new round, which no alarm of the last one can end."""
        self.round += 1
        self._asks = 0
        self._open = self._expired = False
        self._total = None
        self._arrived, self._lost, self._refused = [], {}, {}

    # What is kept across a restart ----------------------------------------------------------------------

    def snapshot(self) -> State:
        """All that changes, as a tree that can be written to disk."""
        return {name: getattr(self, name) for name in _CHANGING}

    def restore(self, snapshot: State) -> None:
        for name in _CHANGING:
            setattr(self, name, snapshot[name])


_CHANGING = (
    "state", "round", "left", "_open", "_expired", "_total",
    "_arrived", "_lost", "_refused", "_out", "_turns", "_heard", "_enough", "_asks", "_initialised",
)  # fmt: skip

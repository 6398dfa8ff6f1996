"""A server rule with every way of waiting, and a driver that checks a node after each thing that happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from undergrowth.core import (
    Answer,
    Ask,
    AskId,
    Command,
    Context,
    Deadline,
    Drop,
    Lost,
    Node,
    Packet,
    Plan,
    Progress,
    Receipt,
    Reducer,
    Refused,
    RoundEnd,
    Server,
    State,
    Task,
    View,
    WeightedMean,
    find_non_finite,
    pack,
    unpack,
)
from undergrowth.core.samplers import count_of


@dataclass(frozen=True)
class Rule(Server):
    """Synchronous (with a deadline, or satisfied with `goal` uploads), or a buffer of `goal` uploads."""

    asynchronous: bool = False
    deadline: float | None = None
    quorum: bool = False
    goal: int = 1
    concurrency: int = 2
    share: float = 1.0
    reducer: Reducer = WeightedMean()

    def init(self, task: Task, context: Context) -> State:
        return {"model": {"w": torch.zeros(2)}, "steps": 0}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        down = Packet(state["model"])
        if self.asynchronous:
            free = max(0, self.concurrency - len(view.out))
            return Plan(dict.fromkeys(view.idle[:free], down), self.deadline)
        plan = self.ask(task, view, context, down, count_of(self.share, len(view.devices)))
        return replace(plan, deadline=self.deadline)

    def ready(self, progress: Progress) -> bool:
        if self.asynchronous or self.quorum:
            # Does not handle the case of no open ask: the node itself must end such a round.
            return progress.arrived >= self.goal or progress.expired
        return super().ready(progress)

    def check(self, task: Task, up: Packet) -> str | None:
        return find_non_finite(up)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        return {**state, "model": dict(combined.tensors), "steps": state["steps"] + 1}


def upload(value: float = 1.0, samples: float = 1.0) -> Packet:
    return Packet({"w": torch.full((2,), value)}, {"samples": samples})


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal, tensors bit for bit."""
    (first, text), (second, other) = pack(a), pack(b)
    return text == other and all(torch.equal(first[k], second[k]) for k in first)


def plain(commands: list[Command]) -> list[Any]:
    return [
        [type(command).__name__, *(command if isinstance(command, tuple) else vars(command).values())]
        for command in commands
    ]


@dataclass
class Drive:
    """A node, the copies of it that were restored on the way, and what the driver believes about it."""

    make: Callable[[], Node]
    nodes: list[Node] = field(default_factory=list)
    out: dict[str, AskId] = field(default_factory=dict)
    asked: set[AskId] = field(default_factory=set)
    arrived: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    ends: list[RoundEnd] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)  # asked in the open round

    def __post_init__(self) -> None:
        self.nodes = [self.make()]

    @property
    def node(self) -> Node:
        return self.nodes[0]

    def tell(self, event: Callable[[Node], Any]) -> Any:
        replies = [event(node) for node in self.nodes]
        assert replies.count(replies[0]) == len(replies)
        return replies[0]

    def copy(self) -> None:
        """From here on a copy that went through its form on disk is driven along."""
        twin = self.make()
        tensors, text = pack(self.node.snapshot())
        twin.restore(unpack({name: value.clone() for name, value in tensors.items()}, text))
        self.nodes.append(twin)

    def answer(self, child: str, content: Any) -> Receipt:
        """Answers the open ask of a child; for a child without one, an ask that was never given out."""
        id = self.out.get(child, AskId(child, 99, 99))
        receipt: Receipt = self.tell(lambda node: node.receive(Answer(id, content)))
        assert (receipt is Receipt.UNKNOWN) is (self.out.pop(child, None) is None)
        return receipt

    def receive(self, child: str, up: Packet, fits: bool = True) -> None:
        receipt = self.answer(child, up)
        if receipt is Receipt.TAKEN:
            assert fits
            self.arrived.append(child)
        elif receipt is Receipt.REFUSED:
            assert not fits
            self.refused.add(child)

    def lose(self, child: str) -> None:
        if self.answer(child, Lost("gone")) is Receipt.LOST:
            self.lost[child] = "gone"

    def refuse(self, child: str) -> None:
        if self.answer(child, Refused("bad")) is Receipt.REFUSED:
            self.refused.add(child)

    def replay(self, id: AskId) -> None:
        """Answers an ask that is not open: nothing may come of it."""
        before = self.node.snapshot()
        receipt = self.tell(lambda node: node.receive(Answer(id, upload(99.0))))
        assert receipt in (Receipt.REPEATED, Receipt.LATE)
        assert same(before, self.node.snapshot())

    def advance(self) -> list[Command]:
        before = self.node.state
        commands = self.node.advance()
        for twin in self.nodes[1:]:
            assert same(plain(twin.advance()), plain(commands))
            assert same(twin.snapshot(), self.node.snapshot())
        for command in commands:
            if isinstance(command, Ask):
                self._asked(command)
            elif isinstance(command, Drop):
                assert self.out.pop(command.id.node) == command.id
            elif isinstance(command, RoundEnd):
                self._ended(command)
            elif isinstance(command, Deadline):
                assert command.seconds == self.node.server.deadline  # type: ignore[attr-defined]
        ends = [command for command in commands if isinstance(command, RoundEnd)]
        if all(end.abandoned for end in ends):
            assert self.node.state is before, "nothing arrived and the state changed"
        assert self.node.done or self.out, "the node waits for nobody"
        return commands

    def _asked(self, ask: Ask) -> None:
        assert ask.child not in self.out, "asked twice at once"
        assert ask.id not in self.asked
        assert ask.id.round == len(self.ends)
        self.asked.add(ask.id)
        self.out[ask.child] = ask.id
        self.fresh.append(ask.child)

    def _ended(self, end: RoundEnd) -> None:
        assert end.round == len(self.ends)
        assert list(end.arrived) == self.arrived
        assert end.lost == self.lost
        assert set(end.refused) == self.refused
        assert all(end.refused.values()), "a refusal says why"
        assert end.abandoned is (not self.arrived)
        if not self.node.server.asynchronous:
            accounted = [*end.arrived, *end.lost, *end.refused, *end.dropped]
            assert sorted(accounted) == sorted(self.fresh), "everybody who was asked is accounted for once"
        self.ends.append(end)
        self.arrived, self.lost, self.refused, self.fresh = [], {}, set(), []


def node(task: Task, rule: Rule, count: int = 3, cycles: int = 2) -> Node:
    """Returns a root with `count` children that has been started."""
    made = Node("root", rule, task, tuple(f"c{i}" for i in range(count)), cycles)
    made.start()
    return made


def ends(commands: list[object]) -> list[RoundEnd]:
    """Returns the ends of rounds among `commands`."""
    return [command for command in commands if isinstance(command, RoundEnd)]

"""Rounds of several phases: what is asked, what ends a phase, and how its asks are distinguished."""

from __future__ import annotations

from dataclasses import dataclass, field

from undergrowth.core import (
    Answer,
    Ask,
    AskId,
    Context,
    Deadline,
    Drop,
    Lost,
    Node,
    Packet,
    Plan,
    Receipt,
    State,
    Task,
    View,
)

from .driving import Rule, ends, node, upload


def restored(before: Node) -> Node:
    after = Node("root", before.server, before.task, before.children, before.cycles)
    after.restore(before.snapshot())
    return after


def answer(one: Node, child: str, content: Packet | Lost) -> None:
    receipt = one.receive(Answer(one._out[child], content))
    assert receipt is (Receipt.LOST if isinstance(content, Lost) else Receipt.TAKEN)


def asks(commands: list[object]) -> list[Ask]:
    return [command for command in commands if isinstance(command, Ask)]


@dataclass(frozen=True)
class TwoPhases(Rule):
    """Every second round has a second phase, in which the children that arrived in the first are asked again."""

    views: list[View] = field(default_factory=list, compare=False)

    def phases(self, task: Task, context: Context) -> tuple[str, ...]:
        return ("first", "second") if context.round % 2 else ("first",)

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        self.views.append(view)
        if view.phase == "first":
            return super().plan(task, state, view, context)
        return Plan(dict.fromkeys(view.answered, Packet(state["model"])), self.deadline)


def test_a_round_of_two_phases_plans_asks_and_steps_twice(linear_task: Task) -> None:
    rule = TwoPhases(deadline=30.0)
    one = node(linear_task, rule, cycles=3)
    turns, given = [], asks(one.advance())
    for round in range(3):
        turns.append([ask.id for ask in given])
        answer(one, "c0", upload(1.0 + round))
        answer(one, "c1", upload(3.0 + round))
        one.expire(round)
        commands = one.advance()
        if round == 1:
            assert [type(command) for command in commands] == [Drop, Ask, Ask, Deadline], "the round goes on"
            assert commands[0] == Drop(AskId("c2", 1, 1)) and commands[-1] == Deadline(1, 30.0, 1)
            assert commands[1].packet.tensors["w"].tolist() == [3.0, 3.0], "the state after the first step"
            assert rule.views[-1].phase == "second" and list(rule.views[-1].answered) == ["c0", "c1"]
            assert [ask.id for ask in asks(commands)] == [AskId("c0", 1, 2), AskId("c1", 1, 2)]
            one = restored(one)
            one.expire(1, 0)
            assert one.advance() == [], "the deadline of the first phase is over"
            answer(one, "c1", upload(9.0))
            assert one.receive(Answer(AskId("c1", 1, 2), upload(7.0))) is Receipt.REPEATED
            assert one.receive(Answer(AskId("c2", 1, 1), upload(7.0))) is Receipt.LATE
            assert one.receive(Answer(AskId("c2", 1, 3), upload(7.0))) is Receipt.UNKNOWN
            one.expire(1, 1)
            commands = one.advance()
            assert one.state["model"]["w"].tolist() == [9.0, 9.0] and one.state["steps"] == 3
            assert one.receive(Answer(AskId("c0", 1, 2), upload(7.0))) is Receipt.LATE
        (end,) = ends(commands)
        assert end.arrived == ("c0", "c1") and end.dropped == (("c2",) if round != 1 else ("c2", "c0"))
        given = asks(commands)
    assert one.done
    assert turns == [[AskId(child, round, round) for child in ("c0", "c1", "c2")] for round in range(3)]


def test_a_second_phase_in_which_nobody_arrives_ends_the_round_with_the_first_step(linear_task: Task) -> None:
    one = node(linear_task, TwoPhases(), cycles=2)
    one.advance()
    for child in ("c0", "c1", "c2", "c0", "c1", "c2"):
        answer(one, child, upload(4.0))
        one.advance()
    for child in ("c0", "c1", "c2"):
        answer(one, child, Lost("gone"))
    (end,) = ends(one.advance())
    assert one.done and end.arrived == ("c0", "c1", "c2") and list(end.lost) == ["c0", "c1", "c2"]
    assert one.state["steps"] == 2

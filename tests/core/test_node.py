"""A node under any order of packets, losses, deadlines and restarts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core import (
    Answer,
    Ask,
    AskId,
    Deadline,
    Drop,
    Lost,
    Node,
    Packet,
    Receipt,
    RoundEnd,
    Sum,
    Task,
    WeightedMean,
)

from .driving import Drive, Rule, ends, node, same, upload

BAD = {
    "not a number": Packet({"w": torch.tensor([1.0, math.nan])}, {"samples": 1.0}),
    "infinite": Packet({"w": torch.tensor([math.inf, -math.inf])}, {"samples": 1.0}),
    "a bad number beside": Packet({"w": torch.ones(2)}, {"samples": 1.0, "loss": math.nan}),
    "a weight below zero": Packet({"w": torch.ones(2)}, {"samples": -1.0}),
    "no weight": Packet({"w": torch.ones(2)}),
}
MISFITS = {  # refused once there is something that they do not fit
    "another shape": Packet({"w": torch.ones(3)}, {"samples": 1.0}),
    "another name": Packet({"v": torch.ones(2)}, {"samples": 1.0}),
    "another type": Packet({"w": torch.ones(2, dtype=torch.int64)}, {"samples": 1.0}),
}

RULES = st.one_of(
    st.builds(Rule, share=st.sampled_from((0.4, 1.0))),
    st.builds(Rule, deadline=st.just(5.0), share=st.sampled_from((0.6, 1.0))),
    st.builds(Rule, quorum=st.just(True), goal=st.integers(1, 6), deadline=st.sampled_from((None, 5.0))),
    st.builds(
        Rule,
        asynchronous=st.just(True),
        goal=st.integers(1, 4),
        concurrency=st.integers(1, 4),
        deadline=st.sampled_from((None, 9.0)),
    ),
)
EVENTS = ("receive",) * 4 + ("copy", "expire") * 2
EVENTS += ("lose", "bad", "misfit", "late alarm", "refuse", "unexpected", "replay")


def nobody_answers(drive: Drive) -> None:
    drive.receive("nobody", upload())
    drive.lose("nobody")
    drive.refuse("nobody")


def replay_all(drive: Drive) -> None:
    for id in sorted(drive.asked - set(drive.out.values())):
        drive.replay(id)


def happen(drive: Drive, event: str, child: str, number: float) -> None:
    happenings: dict[str, Callable[[], Any]] = {
        "receive": lambda: drive.receive(child, upload(number, samples=abs(number))),
        "replay": lambda: replay_all(drive),
        "unexpected": lambda: nobody_answers(drive),
        "lose": lambda: drive.lose(child),
        "refuse": lambda: drive.refuse(child),
        "bad": lambda: drive.receive(child, list(BAD.values())[int(number) % len(BAD)], fits=False),
        "misfit": lambda: (
            drive.arrived and drive.receive(child, list(MISFITS.values())[int(number) % len(MISFITS)], fits=False)
        ),
        "expire": lambda: drive.tell(lambda node: node.expire(node.round)),
        "late alarm": lambda: drive.tell(lambda node: node.expire(node.round - 1)),
        "copy": lambda: len(drive.nodes) < 3 and drive.copy(),
    }
    happenings[event]()


@settings(max_examples=150)
@given(RULES, st.integers(1, 5), st.integers(1, 4), st.booleans(), st.data())
def test_a_node_never_deadlocks_and_accounts_for_everybody(
    linear_task: Task, rule: Rule, count: int, cycles: int, is_root: bool, data: st.DataObject
) -> None:
    children = tuple(f"c{i}" for i in range(count))
    drive = Drive(lambda: Node("n", rule, linear_task, children, cycles, seed=7, is_root=is_root))
    if data.draw(st.booleans()):
        drive.copy()
    ask = None if is_root else Ask(AskId("n", 0, 0), Packet({"w": torch.zeros(2)}))
    drive.tell(lambda node: node.start(ask))
    drive.advance()
    for event in data.draw(st.lists(st.sampled_from(EVENTS), max_size=25)):
        if drive.node.done:
            break
        child = data.draw(st.sampled_from(sorted(drive.out))) if drive.out else "nobody"
        happen(drive, event, child, data.draw(st.sampled_from((-2.0, 0.0, 1.0, 3.0))))
        if data.draw(st.booleans()) or not drive.out:
            drive.advance()
    for _ in range(cycles * (count + rule.goal) + 1):  # from here on everybody answers
        for child in sorted(drive.out):
            drive.receive(child, upload())
        drive.advance()
        if drive.node.done:
            break
    assert drive.node.done and not drive.out
    assert [end.round for end in drive.ends] == list(range(cycles))
    assert drive.node.advance() == []
    for id in drive.asked:
        drive.replay(id)


def answer(one: Node, child: str, content: Any) -> Receipt:
    """Answers the open ask of a child."""
    return one.receive(Answer(one._out[child], content))


def test_a_round_in_which_all_are_lost_is_abandoned(linear_task: Task) -> None:
    one = node(linear_task, Rule())
    one.advance()
    before = one.state
    for child in one.children:
        answer(one, child, Lost(f"{child} went flat"))
    commands = one.advance()
    (end,) = ends(commands)
    assert end.abandoned and end.lost == {c: f"{c} went flat" for c in one.children} and end.scalars == {}
    assert one.state is before
    assert {c.child for c in commands if isinstance(c, Ask)} == set(one.children), "the next round asks again"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_is_refused_and_named_and_the_round_goes_on(linear_task: Task, name: str) -> None:
    one = node(linear_task, Rule())
    one.advance()
    answer(one, "c1", BAD[name])
    answer(one, "c0", upload(2.0, 1.0))
    assert one.advance() == [], "the third is still waited for"
    answer(one, "c2", upload(5.0, 2.0))
    (end,) = ends(one.advance())
    assert end.arrived == ("c0", "c2") and list(end.refused) == ["c1"] and len(end.refused["c1"].split()) >= 3
    assert one.state["model"]["w"].tolist() == [4.0, 4.0]
    assert end.scalars["samples"] == 3.0


def test_a_deadline_gives_up_those_who_are_not_back(linear_task: Task) -> None:
    one = node(linear_task, Rule(deadline=30.0), cycles=1)
    assert Deadline(0, 30.0) in one.advance()
    answer(one, "c1", upload(3.0))
    one.expire(1)
    assert one.advance() == [], "the alarm of another round is not this one's"
    one.expire(0)
    commands = one.advance()
    assert commands[:2] == [Drop(AskId("c0", 0, 0)), Drop(AskId("c2", 0, 0))]
    (end,) = ends(commands)
    assert end.arrived == ("c1",) and end.dropped == ("c0", "c2")
    assert one.done and one.receive(Answer(AskId("c0", 0, 0), upload(9.0))) is Receipt.LATE
    assert one.state["model"]["w"].tolist() == [3.0, 3.0]


def test_a_buffer_keeps_the_others_at_work_and_tells_how_old_an_upload_is(linear_task: Task) -> None:
    ages: list[int] = []

    def discount(age: int) -> float:
        ages.append(age)
        return 1.0

    rule = Rule(asynchronous=True, goal=2, concurrency=3, reducer=WeightedMean(discount=discount))
    one = node(linear_task, rule, count=4, cycles=2)
    assert [c.child for c in one.advance() if isinstance(c, Ask)] == ["c0", "c1", "c2"]
    answer(one, "c0", upload())
    assert [c.child for c in one.advance() if isinstance(c, Ask)] == ["c0"], "a free place is filled at once"
    answer(one, "c1", upload())
    commands = one.advance()
    assert ends(commands)[0].arrived == ("c0", "c1") and not any(isinstance(c, Drop) for c in commands)
    answer(one, "c2", upload())  # asked in round 0, back in round 1
    one.advance()
    answer(one, "c0", upload())
    final = one.advance()
    assert ages == [0, 0, 1, 1]
    assert one.done and set(ends(final)[0].dropped) == {c.id.node for c in final if isinstance(c, Drop)} != set()


def test_what_an_engine_combined_counts_like_single_uploads(linear_task: Task) -> None:
    one, other = node(linear_task, Rule(), cycles=1), node(linear_task, Rule(), cycles=1)
    one.advance()
    other.advance()
    reducer = one.server.reducer
    ups = {c: upload(float(i), i + 1.0) for i, c in enumerate(one.children)}
    for child, up in ups.items():
        answer(one, child, up)
    total = reducer.merge(*(reducer.lift(c, ups[c], 0) for c in ("c0", "c1")))
    assert other.receive_combined({other._out[c]: {} for c in ("c0", "c1")}, total) is Receipt.TAKEN
    answer(other, "c2", ups["c2"])
    assert ends(one.advance()) == ends(other.advance())
    assert same(one.state, other.state)


def test_nobody_to_ask_ends_the_rounds(linear_task: Task) -> None:
    one = node(linear_task, Rule(), count=0, cycles=3)
    assert [end.abandoned for end in ends(one.advance())] == [True] * 3
    assert one.done


def test_children_are_sampled_anew_each_round_and_alike_for_the_same_seed(linear_task: Task) -> None:
    def cohorts(seed: int) -> list[tuple[str, ...]]:
        one = Node("root", Rule(share=0.3), linear_task, tuple(f"c{i}" for i in range(10)), 6, seed=seed)
        one.start()
        found = []
        while not one.done:
            asked = tuple(c.child for c in one.advance() if isinstance(c, Ask))
            found.append(asked)
            for child in asked:
                answer(one, child, upload())
        return [cohort for cohort in found if cohort]

    assert cohorts(1) == cohorts(1) != cohorts(2)
    assert {len(cohort) for cohort in cohorts(1)} == {3}
    assert len(set(cohorts(1))) > 1


def test_a_deadline_that_passed_before_a_restart_still_counts_after_it(linear_task: Task) -> None:
    drive = Drive(lambda: Node("root", Rule(deadline=3.0), linear_task, ("c0", "c1"), 1))
    drive.tell(lambda one: one.start())
    drive.advance()
    drive.receive("c1", upload(4.0))
    drive.tell(lambda one: one.expire(0))
    drive.copy()
    drive.advance()
    assert all(one.done and one.state["model"]["w"].tolist() == [4.0, 4.0] for one in drive.nodes)


def test_a_quorum_that_cannot_be_reached_any_more_ends_the_round(linear_task: Task) -> None:
    one = node(linear_task, Rule(quorum=True, goal=3), cycles=1)
    one.advance()
    answer(one, "c0", upload(2.0))
    answer(one, "c1", Lost("gone"))
    assert one.advance() == []
    answer(one, "c2", Lost("gone"))
    (end,) = ends(one.advance())
    assert end.arrived == ("c0",) and set(end.lost) == {"c1", "c2"} and one.done


def test_a_combination_with_an_upload_that_is_not_awaited_is_ignored(linear_task: Task) -> None:
    one = node(linear_task, Rule(), cycles=1)
    one.advance()
    asks = dict(one._out)
    answer(one, "c0", upload(1.0))
    before = one.snapshot()
    uploads = {asks[child]: {} for child in ("c0", "c1")}
    assert one.receive_combined(uploads, upload(9.0, 2.0)) is Receipt.REPEATED
    assert one.receive_combined({AskId("c1", 0, 7): {}}, upload(9.0, 2.0)) is Receipt.UNKNOWN
    assert same(before, one.snapshot())


def test_receipts_say_why_an_answer_was_ignored(linear_task: Task) -> None:
    one = node(linear_task, Rule(deadline=1.0))
    first = {ask.child: ask.id for ask in one.advance() if isinstance(ask, Ask)}
    assert one.receive(Answer(first["c0"], upload())) is Receipt.TAKEN
    assert one.receive(Answer(first["c0"], upload())) is Receipt.REPEATED
    one.expire(0)
    second = {ask.child: ask.id for ask in one.advance() if isinstance(ask, Ask)}
    assert one.receive(Answer(first["c1"], upload())) is Receipt.LATE, "it was given up at the deadline"
    assert one.receive(Answer(first["c0"], upload())) is Receipt.REPEATED
    assert one.receive(Answer(second["c0"]._replace(turn=2), upload())) is Receipt.UNKNOWN
    assert one.receive(Answer(AskId("stranger", 1, 0), upload())) is Receipt.UNKNOWN
    assert one.receive(Answer(second["c0"], Lost("gone"))) is Receipt.LOST


@settings(max_examples=100)
@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_order_repetition_replay_and_loss_of_answers_do_not_change_what_a_round_is_made_of(
    linear_task: Task, count: int, cycles: int, data: st.DataObject
) -> None:
    """A network delivers answers in any order, twice, rounds too late or not at all; uploads are integers, so that the
    sum is exact. Every round must consist of exactly the answers to its own asks."""
    children = tuple(f"c{i}" for i in range(count))
    one = Node("n", Rule(deadline=1.0, reducer=Sum()), linear_task, children, cycles)
    one.start()
    commands, past = one.advance(), []
    for number in range(cycles):
        asks = [command.id for command in commands if isinstance(command, Ask)]
        assert [id.node for id in asks] == list(children), "no earlier answer or loss blocks a round"
        answers = [Answer(id, upload(float(100**number * (1 + i)))) for i, id in enumerate(asks)]
        delivered = data.draw(st.lists(st.sampled_from(answers * 2 + past), max_size=3 * count))
        for each in delivered:
            one.receive(each)
        expected = [each for each in dict.fromkeys(each.id for each in delivered) if each in asks]
        one.expire(number)
        commands = one.advance()
        (end,) = [command for command in commands if isinstance(command, RoundEnd)]
        assert end.arrived == tuple(id.node for id in expected)
        assert set(end.dropped) == set(children) - set(end.arrived)
        if expected:
            total = sum(100.0**number * (1 + asks.index(id)) for id in expected)
            assert one.state["model"]["w"].tolist() == [total, total]
        past += answers
    assert one.done

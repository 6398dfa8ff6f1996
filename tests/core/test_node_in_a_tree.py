"""Nodes below the root: what they pass down, and what they report."""

from __future__ import annotations

import torch

from undergrowth.core import (
    Answer,
    Ask,
    AskId,
    Drop,
    InnerServer,
    Lost,
    Node,
    Packet,
    Partial,
    RoundEnd,
    Server,
    Task,
    TiltedMean,
    View,
)
from undergrowth.core.context import Context

from .driving import Rule, same, upload

CHILDREN = tuple(f"d{i}" for i in range(5))
UPS = {child: upload(float(i) / 3, 2.0**i) for i, child in enumerate(CHILDREN)}


def asks(commands: list[object]) -> list[Ask]:
    return [command for command in commands if isinstance(command, Ask)]


def parent_asks(turn: int = 0, *values: float) -> Ask:
    return Ask(AskId("edge", turn, turn), Packet({"w": torch.tensor(values or (0.0, 0.0))}))


def inner(task: Task, children: tuple[str, ...], server: Server | None = None, cycles: int = 1) -> Node:
    return Node("edge", server or InnerServer(Rule()), task, children, cycles, is_root=False)


def test_an_inner_node_answers_with_a_partial_result(linear_task: Task) -> None:
    edge = inner(linear_task, CHILDREN[:2])
    edge.start(parent_asks(0, 7.0, 8.0))
    given = asks(edge.advance())
    assert [ask.child for ask in given] == ["d0", "d1"]
    assert all(ask.packet.tensors["w"].tolist() == [7.0, 8.0] for ask in given), "the parent's model goes on down"
    for ask in given:
        edge.receive(Answer(ask.id, UPS[ask.child]))
    answer = edge.advance()[-1]
    assert isinstance(answer, Answer) and answer.id == AskId("edge", 0, 0)
    assert isinstance(answer.content, Partial)
    assert answer.content.packet.tags == {} and answer.content.packet.scalars == {"samples": 3.0}
    torch.testing.assert_close(answer.content.packet.tensors["w"], torch.full((2,), 2 / 9))
    assert edge.done


def test_a_second_ask_in_one_round_of_the_parent_is_newer_and_repeats_are_ignored(linear_task: Task) -> None:
    edge = inner(linear_task, CHILDREN[:2])
    for number, (round, turn, phase) in enumerate([(0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 2, 1)]):
        ask = Ask(AskId("edge", round, turn), Packet({"w": torch.tensor([1.0 + number, 0.0])}), phase)
        edge.start(ask)
        given = asks(edge.advance())
        assert [each.id for each in given] == [AskId(child, round, turn) for child in CHILDREN[:2]]
        assert given[0].packet.tensors["w"][0] == 1.0 + number
        for each in given:
            edge.receive(Answer(each.id, UPS[each.child]))
        (answer,) = [command for command in edge.advance() if isinstance(command, Answer)]
        assert answer.id == ask.id
        edge.start(ask)
        assert edge.advance() == [] and edge.done


def test_a_node_that_lost_all_its_children_is_lost_itself(linear_task: Task) -> None:
    edge = inner(linear_task, CHILDREN[:2])
    edge.start(parent_asks())
    for ask in asks(edge.advance()):
        edge.receive(Answer(ask.id, Lost("gone")))
    commands = edge.advance()
    assert isinstance(commands[-2], RoundEnd) and commands[-2].abandoned
    assert isinstance(commands[-1], Answer) and isinstance(commands[-1].content, Lost)


def test_an_inner_node_works_again_for_the_next_ask(linear_task: Task) -> None:
    edge = inner(linear_task, CHILDREN[:1], cycles=2)
    turns, rounds = [], []
    for turn, value in enumerate((1.0, 2.0)):
        edge.start(parent_asks(turn, value, value))
        assert not edge.done
        while not edge.done:
            for ask in asks(edge.advance()):
                assert ask.packet.tensors["w"].tolist() == [value, value]
                turns.append(ask.id.turn)
                rounds.append(ask.id.round)
                edge.receive(Answer(ask.id, upload()))
    assert turns == rounds == [0, 1, 2, 3]


def test_an_inner_node_has_the_rounds_of_its_parent_whatever_it_missed(linear_task: Task) -> None:
    """An asynchronous parent asks in any of its rounds, and twice in one; a node may also be out of reach for some."""
    edge = inner(linear_task, CHILDREN[:1])
    for turn, round in enumerate((2, 2, 7)):
        edge.start(Ask(AskId("edge", round, turn), Packet({"w": torch.zeros(2)})))
        (ask,) = asks(edge.advance())
        assert ask.id == AskId("d0", round, turn)
        edge.receive(Answer(ask.id, upload()))
        assert any(isinstance(command, Answer) for command in edge.advance())


def test_a_repeated_ask_of_the_parent_is_ignored_and_a_newer_one_replaces_the_work(linear_task: Task) -> None:
    edge = inner(linear_task, CHILDREN[:2])
    edge.start(parent_asks(0, 1.0, 1.0))
    first = asks(edge.advance())
    edge.receive(Answer(first[0].id, upload()))
    before = edge.snapshot()
    assert edge.start(parent_asks(0, 9.0, 9.0)) == []
    assert same(before, edge.snapshot())
    assert edge.start(parent_asks(1, 2.0, 2.0)) == [Drop(first[1].id)]
    again = asks(edge.advance())
    assert [ask.packet.tensors["w"].tolist() for ask in again] == [[2.0, 2.0]] * 2
    edge.receive(Answer(first[1].id, upload(5.0)))  # late
    for ask in again:
        edge.receive(Answer(ask.id, upload(3.0)))
    answer = edge.advance()[-1]
    assert isinstance(answer, Answer) and answer.id.turn == 1 and isinstance(answer.content, Partial)
    assert answer.content.packet.tensors["w"].tolist() == [3.0, 3.0]


def flat(task: Task, rule: Rule, rounds: int) -> Node:
    root = Node("root", rule, task, CHILDREN, rounds)
    root.start()
    while not root.done:
        for ask in asks(root.advance()):
            root.receive(Answer(ask.id, trained(ask)))
    return root


def trained(ask: Ask) -> Packet:
    """What a device would send: its own target, halfway from what it got."""
    mine = UPS[ask.child]
    moved = (ask.packet.tensors["w"] + mine.tensors["w"]) / 2
    return Packet({"w": moved}, {**mine.scalars, "loss": float(mine.tensors["w"][0])})


def tree(task: Task, rule: Rule, rounds: int) -> Node:
    """Two edge servers under the root, and one device that is a child of the root itself."""
    edges = {
        "left": inner(task, CHILDREN[:3], InnerServer(rule)),
        "right": inner(task, CHILDREN[3:4], InnerServer(rule)),
    }
    root = Node("root", rule, task, ("left", "right", "d4"), rounds, nodes=frozenset(edges))
    root.start()
    while not root.done:
        for ask in asks(root.advance()):
            if ask.child not in edges:
                root.receive(Answer(ask.id, trained(ask)))
                continue
            edge = edges[ask.child]
            edge.start(ask)
            for below in asks(edge.advance()):
                edge.receive(Answer(below.id, trained(below)))
            (answer,) = [command for command in edge.advance() if isinstance(command, Answer)]
            root.receive(answer)
    return root


def test_a_tree_of_two_levels_gives_what_a_star_gives(linear_task: Task) -> None:
    for rule in (Rule(), Rule(reducer=TiltedMean(3.0))):
        star, two = flat(linear_task, rule, 3), tree(linear_task, rule, 3)
        assert star.state["steps"] == two.state["steps"] == 3
        torch.testing.assert_close(two.state["model"], star.state["model"], rtol=1e-6, atol=1e-7)
        assert not same(star.state["model"], {"w": torch.zeros(2)})


def test_nodes_are_all_asked_and_only_devices_are_sampled(linear_task: Task) -> None:
    def asked(view: View, count: int) -> list[str]:
        return list(Server().ask(linear_task, view, Context(1, "root", 0), Packet(), count).packets)

    view = View(("edge", *CHILDREN), nodes=frozenset({"edge"}))
    picked = asked(view, 2)
    assert "edge" in picked and len(picked) == 3 and len(set(picked)) == 3
    assert asked(View(("edge",), nodes=frozenset({"edge"})), 1) == ["edge"]
    assert asked(view, 5) == ["edge", *CHILDREN]
    assert asked(View(()), 1) == []

"""Nodes below the root: what they pass down, and what they report."""

from __future__ import annotations

import torch

from undergrowth.core import Inner, Node, Packet, Report, RoundEnd, Send, Server, Task, TiltedMean, View, sampled
from undergrowth.core.context import Context

from .driving import Rule, same, upload

CHILDREN = tuple(f"d{i}" for i in range(5))
UPS = {child: upload(float(i) / 3, 2.0**i) for i, child in enumerate(CHILDREN)}


def sends(commands: list[object]) -> list[Send]:
    return [command for command in commands if isinstance(command, Send)]


def inner(task: Task, children: tuple[str, ...], server: Server | None = None, cycles: int = 1) -> Node:
    return Node("edge", server or Inner(Rule()), task, children, cycles, is_root=False)


def test_an_inner_node_reports_a_partial_result(linear_task: Task) -> None:
    edge = inner(linear_task, CHILDREN[:2])
    edge.start(Packet({"w": torch.tensor([7.0, 8.0])}))
    asked = sends(edge.advance())
    assert [s.child for s in asked] == ["d0", "d1"]
    assert all(s.packet.tensors["w"].tolist() == [7.0, 8.0] for s in asked), "the parent's model goes on down"
    for send in asked:
        edge.receive(send.child, UPS[send.child])
    report = edge.advance()[-1]
    assert isinstance(report, Report) and report.packet is not None
    assert report.packet.tags == {"folded": "1"} and report.packet.scalars == {"samples": 3.0}
    torch.testing.assert_close(report.packet.tensors["w"], torch.full((2,), 2 / 9))
    assert edge.done


def test_a_node_that_lost_everybody_has_nothing_to_report(linear_task: Task) -> None:
    edge = inner(linear_task, CHILDREN[:2])
    edge.start(Packet({"w": torch.zeros(2)}))
    edge.advance()
    edge.lose("d0", "gone")
    edge.lose("d1", "gone")
    commands = edge.advance()
    assert isinstance(commands[-2], RoundEnd) and commands[-2].abandoned
    assert commands[-1] == Report(None)


def test_an_inner_node_works_again_for_the_next_packet(linear_task: Task) -> None:
    edge = inner(linear_task, CHILDREN[:1], cycles=2)
    turns, rounds = [], []
    for value in (1.0, 2.0):
        edge.start(Packet({"w": torch.full((2,), value)}))
        assert not edge.done
        while not edge.done:
            for send in sends(edge.advance()):
                assert send.packet.tensors["w"].tolist() == [value, value]
                turns.append(send.turn)
                rounds.append(send.round)
                edge.receive("d0", upload())
    assert turns == rounds == [0, 1, 2, 3]


def flat(task: Task, rule: Rule, rounds: int) -> Node:
    root = Node("root", rule, task, CHILDREN, rounds)
    root.start()
    while not root.done:
        for send in sends(root.advance()):
            root.receive(send.child, answer(send))
    return root


def answer(send: Send) -> Packet:
    """What a device would send: its own target, halfway from what it got."""
    mine = UPS[send.child]
    moved = (send.packet.tensors["w"] + mine.tensors["w"]) / 2
    return Packet({"w": moved}, {**mine.scalars, "loss": float(mine.tensors["w"][0])})


def tree(task: Task, rule: Rule, rounds: int) -> Node:
    """Two edge servers under the root, and one device that hangs on the root itself."""
    edges = {"left": inner(task, CHILDREN[:3], Inner(rule)), "right": inner(task, CHILDREN[3:4], Inner(rule))}
    root = Node("root", rule, task, ("left", "right", "d4"), rounds, nodes=frozenset(edges))
    root.start()
    while not root.done:
        for send in sends(root.advance()):
            if send.child not in edges:
                root.receive(send.child, answer(send))
                continue
            edge = edges[send.child]
            edge.start(send.packet)
            for below in sends(edge.advance()):
                edge.receive(below.child, answer(below))
            (report,) = [c for c in edge.advance() if isinstance(c, Report)]
            assert report.packet is not None
            root.receive(send.child, report.packet)
    return root


def test_a_tree_of_two_levels_gives_what_a_star_gives(linear_task: Task) -> None:
    for rule in (Rule(), Rule(reducer=TiltedMean(3.0))):
        star, two = flat(linear_task, rule, 3), tree(linear_task, rule, 3)
        assert star.state["steps"] == two.state["steps"] == 3
        torch.testing.assert_close(two.state["model"], star.state["model"], rtol=1e-6, atol=1e-7)
        assert not same(star.state["model"], {"w": torch.zeros(2)})


def test_nodes_are_all_asked_and_only_devices_are_sampled() -> None:
    view = View(("edge", *CHILDREN), nodes=frozenset({"edge"}))
    picked = sampled(0.4, view, Context(1, "root", 0))
    assert "edge" in picked and len(picked) == 3 and len(set(picked)) == 3
    assert sampled(0.001, View(CHILDREN), Context(1, "root", 0))[0] in CHILDREN
    assert sampled(0.1, View(("edge",), nodes=frozenset({"edge"})), Context(1, "root", 0)) == ["edge"]
    assert sampled(1.0, view, Context(1, "root", 0)) == ["edge", *CHILDREN]
    assert sampled(0.5, View(()), Context(1, "root", 0)) == []

"""A plan of a tree compared with a run: time of a round, time and bytes by level, for all ways to wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.report.plan_tree import explain_tree
from undergrowth.report.tables import duration

from ..fleet_files import fleet_file

SMALL = {"data_options": {"train_samples": 160}, "partition": "iid", "model": "logistic", "clients": 8}
TREE = {**SMALL, "topology": "tree:2x4"}
ASYNC_EDGES = {"execution": ["synchronous", "asynchronous"]}
ROUNDS = 2


def fleet(tmp_path: Path) -> str:
    """Half of the devices are quick: with 20 samples, a round takes 6 ms, or 54 ms."""
    return fleet_file(tmp_path, quick={"share": 0.5, "flops": 1e8}, slow={"share": 0.5, "flops": 1e6})


def both(tmp_path: Path, **settings: Any) -> tuple[list[dict[str, Any]], Any]:
    """The rows of the plan and the result of the run."""
    settings = {"fleet": fleet(tmp_path), "rounds": ROUNDS, **settings}
    return ug.plan("bhfl", **settings).tree, ug.run("bhfl", out=str(tmp_path), progress=False, **settings)


def last_round(result: Any) -> float:
    return result.history[-1]["simulated_seconds"] - result.history[-2]["simulated_seconds"]


def level_bytes(result: Any, root: bool, round: int) -> tuple[int, int]:
    """Bytes down and up over the links to the root's children, or over all others, in a round."""
    entries = [e for e in result.ledger.rows() if e.round == round and (e.parent == "server") is root]
    return sum(entry.bytes_down for entry in entries), sum(entry.bytes_up for entry in entries)


CASES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "asynchronous edges": {"options": ASYNC_EDGES},
    "several answers and rounds": {"options": {**ASYNC_EDGES, "buffer": 2, "rounds_per_level": 3}},
    "one asynchronous node": {"topology": {"nodes": {"a": {"devices": 4, "asynchronous": True}, "b": {"devices": 4}}}},
    "lan": {"server_link": "lan", "options": ASYNC_EDGES},
    "metro": {"server_link": "metro"},
    "wan": {"server_link": "wan", "options": ASYNC_EDGES},
    "deadlines": {"server_link": "lan", "deadline": 0.5, "node_deadlines": {"edge-00": 0.02}},
    "a late server": {"server_link": "wan", "deadline": 0.06, "node_deadlines": {"edge-00": 0.01}},
    "three levels": {"topology": "tree:2x2x2", "options": {"execution": ["synchronous", "asynchronous"]}},
    "devices that keep their previous models": {"options": {"leaf": "moon"}, "model": "mlp"},
    "devices that train between rounds": {
        "server_link": "metro",
        "stream": {"memory": 20, "arrive": 5, "local_epochs": 1},
    },
}


@pytest.mark.filterwarnings("ignore::undergrowth.RunWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_synchronous_root(case: str, tmp_path: Path) -> None:
    rows, result = both(tmp_path, **{**TREE, **CASES[case]})
    assert rows[0]["seconds"] == pytest.approx(last_round(result))
    assert (rows[0]["bytes_down"], rows[0]["bytes_up"]) == level_bytes(result, True, ROUNDS)
    below = [sum(row[key] for row in rows[1:]) for key in ("bytes_down", "bytes_up")]
    assert tuple(below) == level_bytes(result, False, ROUNDS)
    late = [entry for entry in result.ledger.rows() if entry.outcome == "late" and entry.round == ROUNDS]
    assert rows[0]["late"] == sum(entry.parent == "server" for entry in late)


def test_an_edge_server_answers_after_its_own_number_of_answers(tmp_path: Path) -> None:
    options = {**ASYNC_EDGES, "buffer": 3, "rounds_per_level": 2}
    (_, edge), _ = both(tmp_path, **{**TREE, "topology": "tree:1x8"}, options=options)
    quick, slow = (row["seconds"] for row in ug.plan("bhfl", **SMALL, fleet=fleet(tmp_path)))
    # The four quick devices answer in the same instant: they end both rounds before a slow one is back.
    assert 2 * quick < slow
    assert edge["seconds"] == pytest.approx(2 * quick)
    assert edge["bytes_up"] == 2 * 4 * (4 * (64 * 10 + 10) + 8)


@pytest.mark.parametrize("options", [{"execution": ["asynchronous", "synchronous"]}, {"execution": "asynchronous"}])
def test_a_round_of_an_asynchronous_root_is_the_mean_over_the_run(options: dict[str, Any], tmp_path: Path) -> None:
    unequal = {"nodes": {"a": {"devices": 2}, "b": {"devices": 6, "link": "wan"}}}
    rows, result = both(tmp_path, **{**TREE, "topology": unequal}, options=options, rounds=7)
    assert rows[0]["seconds"] == pytest.approx(result.history[-1]["simulated_seconds"] / 7)
    for row, root in zip(rows, (True, False), strict=True):
        booked = [level_bytes(result, root, round) for round in range(1, 8)]
        assert row["bytes_down"] == pytest.approx(sum(down for down, _ in booked) / 7, abs=0.5)
        assert row["bytes_up"] == pytest.approx(sum(up for _, up in booked) / 7, abs=0.5)


def test_a_star_takes_as_long_as_its_slowest_device(tmp_path: Path) -> None:
    settings = {**SMALL, "fleet": fleet(tmp_path), "rounds": 2}
    result = ug.run("bhfl", out=str(tmp_path), progress=False, **settings)
    assert max(row["seconds"] for row in ug.plan("bhfl", **settings)) == pytest.approx(last_round(result))


@pytest.mark.parametrize(
    ("method", "options"),
    [("fedbuff", {"buffer": 3, "concurrency": 5}), ("fedasync", {}), ("bhfl", {"execution": "asynchronous"})],
)
def test_a_round_of_an_asynchronous_star_is_the_mean_over_the_run(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**SMALL, "fleet": fleet(tmp_path), "rounds": 7, "options": options}
    result = ug.run(method, out=str(tmp_path), progress=False, **settings)
    mean = result.history[-1]["simulated_seconds"] / 7
    plan = ug.plan(method, **settings)
    assert [row["round_seconds"] for row in plan] == [pytest.approx(mean)] * 2 and plan.tree == []
    found = next(sentence for sentence in plan.advice if "does not wait for all devices" in sentence)
    assert f"takes {duration(mean)} with {method} (mean of the first 7 rounds)" in found


def test_only_an_asynchronous_star_has_a_time_of_its_own(tmp_path: Path) -> None:
    for settings in (SMALL, TREE):
        plan = ug.plan("bhfl", **settings, fleet=fleet(tmp_path))
        assert [row["round_seconds"] for row in plan] == [None, None]
        assert not any("does not wait" in sentence for sentence in plan.advice)
    nobody = fleet_file(tmp_path, tiny={"share": 1.0, "flops": 1e8, "memory": 1e4})
    assert [row["round_seconds"] for row in ug.plan("fedbuff", **SMALL, fleet=nobody)] == [None]


@pytest.mark.parametrize("link", ["free", {"down": 1e9, "up": 1e9, "latency": 0.1}])
def test_a_deadline_counts_what_is_left_of_the_training_between_rounds(link: Any, tmp_path: Path) -> None:
    stream = {"memory": 20, "arrive": 5, "local_epochs": 2}
    settings = {**TREE, "fleet": fleet(tmp_path), "server_link": link, "stream": stream, "rounds": 2}
    settings |= {"deadline": 10.0, "node_deadlines": {1: 0.11}}
    outcomes = {
        entry.child: entry.outcome
        for entry in ug.run("bhfl", out=str(tmp_path), progress=False, **settings).ledger.rows()
        if entry.round == 2 and entry.child.startswith("device") and entry.outcome != "own training"
    }
    plan = ug.plan("bhfl", **settings)
    # A slow device trains 0.1 s on its own, and then needs 0.056 s. While a packet is on its way for 0.1 s, it trains.
    verdicts = {"quick": "fits", "slow": "too slow" if link == "free" else "fits"}
    assert {row["device"]: row["verdict"] for row in plan} == verdicts
    for row in plan:
        assert outcomes[row["example"]] == ("arrived" if row["verdict"] == "fits" else "late")
    assert plan.tree[1]["late"] == sum(outcome == "late" for outcome in outcomes.values())
    if link == "free":
        with pytest.raises(ug.InputError, match="of them for training between rounds"):
            ug.run("bhfl", out=str(tmp_path), **{**settings, "deadline": 0.006, "node_deadlines": {}})


def test_three_levels_of_several_rounds(tmp_path: Path) -> None:
    settings = {**SMALL, "fleet": fleet(tmp_path), "topology": "tree:2x2x2", "rounds": 1}
    settings |= {"options": {"rounds_per_level": [2, 3]}, "server_link": "lan"}
    rows = ug.plan("hierfavg", **settings).tree
    result = ug.run("hierfavg", out=str(tmp_path), progress=False, **settings)
    devices = [entry for entry in result.ledger.rows() if entry.child.startswith("device")]
    assert len(devices) == 8 * 2 * 3 and [row["rounds"] for row in rows] == [1, 2, 6]
    assert "do up to 6 rounds; the table of devices has the price of one." in explain_tree(rows)
    assert rows[2]["bytes_up"] == sum(entry.bytes_up for entry in devices)
    assert rows[0]["seconds"] == pytest.approx(result.history[0]["simulated_seconds"])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("hierfavg", {"rounds_per_level": [2, 3]}),
        ("bhfl", {"residuals_down": "all", "leaf": "moon"}),
        ("heterofl", {}),
        ("fedmezo", {}),
    ],
)
def test_the_rows_of_devices_are_what_the_ledger_books(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    nodes = {"a": {}, "b": {"parent": "a", "devices": 4, "sample": 0.5 if method == "hierfavg" else 1.0}}
    settings = {**SMALL, "model": "mlp", "topology": {"nodes": {**nodes, "c": {"devices": "rest"}}}, "options": options}
    plan = ug.plan(method, **settings, rounds=3)
    entries = ug.run(method, out=str(tmp_path), progress=False, evaluate_every=3, rounds=3, **settings).ledger.rows()
    last = [entry for entry in entries if entry.child.startswith("device") and entry.round == 3]
    for row in plan:
        booked = next(entry for entry in last if entry.child == row["example"])
        assert (row["bytes_down"], row["bytes_up"]) == (booked.bytes_down, booked.bytes_up)
        assert (row["flops"], row["memory_bytes"]) == (booked.flops, booked.memory)
    assert sum(row["run_jobs"] for row in plan) == pytest.approx(3 * len(last))
    assert sum(row["run_joules"] for row in plan) == pytest.approx(3 * sum(entry.joules for entry in last))

"""Servers that train on proxy data take time and energy: seconds by hand, the ledger, the plan, bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.runs.api import parse_arguments
from undergrowth.simulation import OWN_TRAINING

from ..fleet_files import PLAIN, fleet_file
from ..stopping import stopped_and_resumed

WEIGHTS = 64 * 10 + 10
UPLOAD = 4 * WEIGHTS + 8
# Logistic regression: two matrix products for every sample of a step, of 64·10 multiplications and additions each.
SAMPLE_FLOPS = 2 * 2 * 64 * 10
SAMPLES, PROXY, EPOCHS = 18, 40, 2  # of a device, which has two more to test with; of the server with proxy data
DEVICE_FLOPS, QUICK, SLOW = 1e7, 4e7, 1e6
LINK = {"down": 1e6, "up": 5e5, "latency": 0.01}

DEVICE = SAMPLES * SAMPLE_FLOPS / DEVICE_FLOPS + 4 * WEIGHTS / 1e6 + UPLOAD / 1e6
SERVER_WORK = EPOCHS * PROXY * SAMPLE_FLOPS
DOWN, UP = 0.01 + 4 * WEIGHTS / 1e6, 0.01 + UPLOAD / 5e5


def settings(tmp_path: Path, proxy: str, nodes: dict[str, Any], flops: float = QUICK, **more: Any) -> dict[str, Any]:
    return {
        "data": "digits",
        "data_options": {"train_samples": 200},
        "public": {"samples": 40, "labelled": True},
        "partition": "iid",
        "clients": 8,
        "model": "logistic",
        "fleet": fleet_file(tmp_path, even={"share": 1, "flops": DEVICE_FLOPS}),
        "topology": {"nodes": nodes},
        "server_link": LINK,
        "server_device": {**PLAIN, "flops": flops, "compute_watts": 100.0},
        "options": {"proxy": proxy, "proxy_epochs": EPOCHS},
        "rounds": 2,
        **more,
    }


ROOT = {"server": {"proxy": 1.0}, "edge": {"devices": 8}}
EDGE = {"edge": {"devices": 8, "proxy": 1.0}}
TWO_ROUNDS = {"edge": {"devices": 8, "proxy": 1.0, "rounds": 2}}
# The seconds of a round of the root and of the edge server, if the server that has proxy data trains s seconds.
CASES: dict[str, tuple[str, dict[str, Any], Callable[[float], tuple[float, float]]]] = {
    "root before": ("before", ROOT, lambda s: (DOWN + DEVICE + UP + s, DEVICE)),
    "edge before": ("before", EDGE, lambda s: (DOWN + DEVICE + s + UP, DEVICE + s)),
    "edge before, two rounds": ("before", TWO_ROUNDS, lambda s: (DOWN + 2 * (DEVICE + s) + UP, 2 * (DEVICE + s))),
    "root beside": ("beside", ROOT, lambda s: (max(DOWN + DEVICE + UP, s), DEVICE)),
    "edge beside": ("beside", EDGE, lambda s: (DOWN + max(DEVICE, s) + UP, max(DEVICE, s))),
    "edge beside, two rounds": (
        "beside", TWO_ROUNDS, lambda s: (DOWN + 2 * max(DEVICE, s) + UP, 2 * max(DEVICE, s)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "flops"), [*((case, QUICK) for case in CASES), ("root beside", SLOW), ("edge beside, two rounds", SLOW)]
)
def test_seconds_by_hand(case: str, flops: float, tmp_path: Path) -> None:
    proxy, nodes, seconds = CASES[case]
    round, edge = seconds(SERVER_WORK / flops)
    given = settings(tmp_path, proxy, nodes, flops)
    result = ug.run("bhfl", out=str(tmp_path), progress=False, **given)
    assert [row["simulated_seconds"] for row in result.history] == pytest.approx([round, 2 * round])
    assert [row["seconds"] for row in ug.plan("bhfl", **given).tree] == pytest.approx([round, edge])


@pytest.mark.parametrize("proxy", ["before", "beside"])
def test_the_ledger_and_the_plan_have_the_work_of_servers(proxy: str, tmp_path: Path) -> None:
    given = settings(tmp_path, proxy, TWO_ROUNDS)
    result = ug.run("bhfl", out=str(tmp_path), progress=False, **given)
    entries = [entry for entry in result.ledger.rows() if entry.outcome == OWN_TRAINING]
    assert [entry.round for entry in entries] == [1, 1, 2, 2]
    assert {(entry.parent, entry.child) for entry in entries} == {("edge", "edge")}
    first = entries[0]
    assert first.start == pytest.approx(DOWN if proxy == "beside" else DOWN + DEVICE)
    assert (first.flops, first.seconds_compute) == (SERVER_WORK, pytest.approx(SERVER_WORK / QUICK))
    assert first.joules == pytest.approx(100 * SERVER_WORK / QUICK)
    assert first.bytes_down == first.bytes_up == first.memory == 0
    root, edge = ug.plan("bhfl", **given).tree
    assert edge["server_flops"] == 2 * SERVER_WORK and edge["server_joules"] == pytest.approx(2 * first.joules)
    assert root["server_flops"] == root["server_joules"] == 0
    free = ug.run("bhfl", out=str(tmp_path), progress=False, **{**given, "server_device": "free"})
    assert free.loss == result.loss  # time changes nothing else in a synchronous tree
    assert result.ledger.flops == free.ledger.flops + 4 * SERVER_WORK


def test_an_asynchronous_root_asks_again_when_it_has_trained(tmp_path: Path) -> None:
    """Two edge servers, of which one is nearer: while the root trains, answers wait for the next round."""
    nodes = {"server": {"proxy": 1.0}, "near": {"devices": 4, "link": "free"}, "far": {"devices": 4}}
    options = {"proxy": "before", "proxy_epochs": EPOCHS, "execution": ["asynchronous", "synchronous"]}
    given = settings(tmp_path, "before", nodes, SLOW, options=options, rounds=3)
    result = ug.run("bhfl", out=str(tmp_path), progress=False, **given)
    training = SERVER_WORK / SLOW
    # Near answers, and the root trains. Far has answered meanwhile, so the second round, in which near is asked again,
    # ends in the instant in which it begins; so does the third one, for which near has answered.
    times = [DEVICE + training, DEVICE + 2 * training, DEVICE + 3 * training]
    assert [row["simulated_seconds"] for row in result.history] == pytest.approx(times)
    assert ug.plan("bhfl", **given).tree[0]["seconds"] == pytest.approx(times[-1] / 3)


@pytest.mark.filterwarnings("ignore::undergrowth.RunWarning")
@pytest.mark.parametrize(("proxy", "start"), [("before", DOWN + DEVICE), ("beside", DOWN)])
def test_a_server_that_is_given_up_stops_training(proxy: str, start: float, tmp_path: Path) -> None:
    nodes = {"slow": {"devices": 4, "proxy": 1.0}, "quick": {"devices": 4}}
    given = settings(tmp_path, proxy, nodes, SLOW, deadline=0.1)
    result = ug.run("bhfl", out=str(tmp_path), progress=False, **given)
    assert [row["simulated_seconds"] for row in result.history] == pytest.approx([0.1, 0.2])
    trained = [entry for entry in result.ledger.rows() if entry.outcome == OWN_TRAINING]
    assert [entry.start for entry in trained] == pytest.approx([start, 0.1 + start])
    assert [entry.seconds_compute for entry in trained] == pytest.approx([0.1 - start] * 2)
    assert trained[0].flops == pytest.approx((0.1 - start) * SLOW)
    assert ug.plan("bhfl", **given).tree[0]["late"] == 1


@pytest.mark.parametrize("proxy", ["before", "beside"])
def test_a_resumed_run_has_the_same_ledger(proxy: str, tmp_path: Path) -> None:
    options = {"proxy": proxy, "execution": "asynchronous"}
    nodes = {"near": {"devices": 4, "link": "free", "proxy": 0.5}, "far": {"devices": 4, "proxy": 0.5, "rounds": 2}}
    given = settings(tmp_path, proxy, nodes, SLOW, options=options, rounds=4)
    whole = ug.run("bhfl", out=str(tmp_path), progress=False, **given)
    raw, _ = parse_arguments({"method": "bhfl", **given})
    again = stopped_and_resumed(raw, 2, str(tmp_path / "stopped"))
    assert list(again.ledger.rows()) == list(whole.ledger.rows())
    assert again.loss == whole.loss


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("edge-servr", "fleet.server_device 'edge-servr' is not known; did you mean 'edge-server'"),
        ({"flops": 1e9}, "profile 'of fleet.server_device'"),
        ({**PLAIN, "memory": 10}, "node 'edge' trains, which needs"),
    ],
)
def test_bad_input_is_one_sentence(device: Any, sentence: str, tmp_path: Path) -> None:
    given = settings(tmp_path, "before", EDGE, server_device=device)
    with pytest.raises(ug.InputError, match=sentence):
        ug.plan("bhfl", **given)


def test_a_note_says_that_no_server_trains(tmp_path: Path) -> None:
    with pytest.warns(ug.RunWarning, match="fleet.server_device has no effect: no server of this run trains"):
        result = ug.run("fedavg", clients=4, model="logistic", rounds=1, server_device="edge-server", out=str(tmp_path))
    assert any("fleet.server_device has no effect" in note for note in result.notes)

"""Who is a straggler, and what stragglers do: the same for every method, from the fleet or drawn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from tests.fleet_files import fleet_file
from undergrowth.core import Context, Model, Packet, Server, Shard, Task, Train, View
from undergrowth.core.samplers import NoKnowledge
from undergrowth.learning import StragglerOptions
from undergrowth.learning.samplers import FedCSSampler
from undergrowth.methods import METHODS, FedAvg, FedFSC, FedFSCPlus, FedProx, FSCProx, Moon

DEVICES = tuple(f"device-{number:02d}" for number in range(20))
TASK = Task(Model(lambda: torch.nn.Linear(2, 2)), 2, Train(epochs=10))
SMALL = {"model": "mlp", "clients": 10, "rounds": 2, "epochs": 4, "partition": "dirichlet:1", "progress": False}
ROWS = ("fedavg", "fedprox", "moon")


def asked(server: Server, round: int, seed: int = 3, task: Task = TASK, **view: Any) -> dict[str, Packet]:
    state = server.init(task, Context(seed, "server", 0))
    return dict(server.plan(task, state, View(DEVICES, **view), Context(seed, "server", round)).packets)


def test_the_draw_is_the_same_for_every_method_and_another_in_every_round() -> None:
    drawn = []
    for round in (1, 2, 3):
        plans = [asked(FedAvg(f_n=0.4).server, round), asked(FedFSC(f_n=0.4).server, round)]
        assert all(set(plan) == set(plans[0]) and len(plan) == 8 for plan in plans)
        options = {"f_n": 0.4, "f_fs": 0.2}
        more = [asked(kind(**options).server, round) for kind in (FedFSCPlus, FSCProx)]
        more += [asked(kind(**options, reduced_epochs=1).server, round) for kind in (FedAvg, FedProx, Moon, FedFSCPlus)]
        for plan in more:
            light = {device for device, packet in plan.items() if packet.tags or packet.scalars}
            assert set(plan) - light == set(plans[0]) and len(light) == 4
            assert light == {device for device, packet in more[0].items() if packet.tags}
        drawn.append(frozenset(plans[0]))
    assert len(set(drawn)) == 3
    assert asked(FedAvg(f_n=0.4).server, 1, seed=4).keys() != asked(FedAvg(f_n=0.4).server, 1).keys()


def test_fixed_stragglers_are_the_same_in_every_round() -> None:
    server = FedAvg(f_n=0.4, stragglers="fixed").server
    assert set(asked(server, 0)) == set(asked(server, 1)) == set(asked(server, 9)) and len(asked(server, 5)) == 8
    again = FedAvg(f_n=0.4, stragglers="each-round").server
    assert len({frozenset(asked(again, number)) for number in (0, 1, 9)}) == 3
    plus = FedProx(f_n=0.4, stragglers="fixed", reduced_epochs=1, random_epochs=True).server
    plan = asked(plus, 7)
    assert set(plan) == set(DEVICES)
    assert {device for device, packet in plan.items() if not packet.scalars} == set(asked(server, 7))


@pytest.mark.parametrize("kind", [FedAvg, FedProx, Moon, FedFSC, FedFSCPlus])
def test_devices_that_are_no_stragglers_can_be_named(kind: Any) -> None:
    able = ("device-03", "device-11")
    both = kind is FedFSCPlus  # its stragglers do the few-shot update
    plan = asked(kind(able=able).server, 2)
    assert {name for name, packet in plan.items() if not (both and packet.tags)} == set(able)
    assert len(plan) == (20 if both else 2)
    if not both:
        light = asked(kind(able=able, reduced_epochs=1).server, 2)
        assert set(light) == set(DEVICES) and {name for name in light if "epochs" not in light[name].scalars} == set(
            able
        )


@pytest.mark.parametrize(
    "setting",
    [{"topology": "tree:2x5"}, {"partition": "dirichlet:0.02"}, {"availability": "diurnal:0.5"}],
    ids=lambda setting: next(iter(setting)),
)
def test_named_devices_may_be_elsewhere_without_samples_or_away(setting: dict[str, Any], tmp_path: Path) -> None:
    able = [f"device-{number:03d}" for number in (0, 1, 4, 7, 9)]
    result = ug.run(method="fedavg", options={"able": able}, out=str(tmp_path), **{**SMALL, "epochs": 1, **setting})
    assert {row.child for row in result.ledger.rows() if row.child.startswith("device")} <= set(able)
    assert result.ledger.bytes_up > 0


@pytest.mark.parametrize(("f_n", "f_fs", "light"), [(0.5, 0.5, 5), (0.25, 0.75, 7), (0.25, 0.5, 5), (0.1, 0.1, 1)])
def test_nobody_is_lost_by_rounding(f_n: float, f_fs: float, light: int) -> None:
    devices = DEVICES[:9]
    options = StragglerOptions(f_n=f_n, f_fs=f_fs)
    able, slow = options.split_devices(TASK, View(devices), Context(3, "server", 1), Packet())
    assert len(slow) == light and not set(able) & set(slow)
    assert f_n + f_fs < 1 or {*able, *slow} == set(devices)


def test_a_sampler_knows_the_time_of_the_smaller_update() -> None:
    class SlowUnlessLight(NoKnowledge):
        def seconds(self, device: str, down: Packet) -> float:
            return 1.0 if device < "device-10" or down.scalars else 10.0

    task = Task(TASK.model, 2, Train(epochs=10, deadline=5.0), sampler=FedCSSampler(deadline=5.0))
    plan = asked(FedAvg(reduced_epochs=1).server, 1, task=task, knowledge=SlowUnlessLight())
    assert {device for device, packet in plan.items() if packet.scalars} == set(DEVICES[10:])
    assert set(plan) == set(DEVICES)


def test_random_epochs_run_from_the_fewest_to_the_runs_and_change_with_the_round() -> None:
    server = FedProx(f_n=0.05, reduced_epochs=1, random_epochs=True).server
    counts: Counter[float] = Counter()
    for round in range(40):
        counts.update(packet.scalars["epochs"] for packet in asked(server, round).values() if packet.scalars)
    assert set(counts) == set(range(1, 11)) and sum(counts.values()) == 40 * 19
    assert min(counts.values()) > 40 and max(counts.values()) < 120


def test_who_would_miss_the_deadline_is_a_straggler() -> None:
    class Slow(NoKnowledge):
        def seconds(self, device: str, down: Packet) -> float:
            return 10.0 if device > "device-11" else 1.0

    task = Task(TASK.model, 2, Train(epochs=10, deadline=5.0))
    plan = asked(FedFSCPlus().server, 1, task=task, knowledge=Slow())
    assert {device for device, packet in plan.items() if packet.tags} == set(DEVICES[12:]) and len(plan) == 20
    assert set(asked(FedFSCPlus().server, 0, task=task, knowledge=Slow())) == set(DEVICES[:12])
    plan = asked(FedAvg(reduced_epochs=2).server, 0, task=task, knowledge=Slow())
    assert {device: packet.scalars.get("epochs") for device, packet in plan.items()} == {
        device: 2.0 if device > "device-11" else None for device in DEVICES
    }
    sampled = Task(TASK.model, 2, Train(sample=0.25, deadline=5.0))
    for round in range(8):  # in the first round nobody is asked who has nothing to do
        plan = asked(FedFSCPlus().server, round, task=sampled, knowledge=Slow())
        assert len(plan) == (5 if round else 3)
        assert all(bool(packet.tags) == (device > "device-11") for device, packet in plan.items())


@pytest.mark.parametrize("method", ROWS)
def test_stragglers_that_do_fewer_epochs_come_back_in_time(method: str, tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path, fast={"flops": 1e12, "share": 0.5}, slow={"flops": 2e6, "share": 0.5})
    settings = {**SMALL, "partition": "iid", "fleet": fleet, "out": str(tmp_path), "deadline": 10.0}
    dropped, kept = (ug.run(method, options={"reduced_epochs": n, **mu(method)}, **settings) for n in (0, 1))
    off = ug.run(method, options=mu(method), **settings)
    assert off.summary["model_digest"] == dropped.summary["model_digest"]
    rows = [row for row in kept.ledger.rows() if row.round == 2]
    slow = [row for row in rows if row.seconds_compute > 1]
    partial = sum(row.outcome == "arrived" for row in dropped.ledger.rows() if row.round == 2)
    assert partial == 5 or method == "fedprox"  # which takes what a straggler has by the deadline
    assert len(slow) == 5 and all(row.outcome == "arrived" and row.end - row.start <= 10 for row in rows)
    assert kept.summary["model_digest"] != dropped.summary["model_digest"]


def mu(method: str) -> dict[str, float]:
    return {} if method == "fedavg" else {"mu": 0.1}


def test_a_device_trains_as_many_epochs_as_it_is_told() -> None:
    client, task = FedAvg().client, TASK
    shard = Shard(torch.randn(9, 2), torch.arange(9) % 2)
    for packet, epochs in ((Packet(task.model.initial(0)), 10), (Packet(task.model.initial(0), {"epochs": 3.0}), 3)):
        _, steps = client.begin(task, packet, shard, {}, Context(0, "a", 0))
        assert len(steps.epochs) == epochs


def test_with_a_share_for_everybody_it_is_the_plain_method_bit_for_bit(tmp_path: Path) -> None:
    settings = {**SMALL, "out": str(tmp_path)}
    plain, all_able = (ug.run("fedavg", options=options, **settings) for options in ({}, {"f_n": 1.0}))
    assert plain.summary["model_digest"] == all_able.summary["model_digest"]
    assert sorted(plain.ledger.rows()) == sorted(all_able.ledger.rows())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"f_fs": 0.2}, r"method\.f_fs 0\.2 needs method\.f_n"),
        ({"f_n": 0.9, "f_fs": 0.2}, "add up to 1"),
        ({"random_epochs": True}, r"method\.random_epochs True needs method\.reduced_epochs"),
        ({"f_n": 0.0}, r"method\.f_n 0\.0 must be"),
        ({"able": ["device-02"], "f_n": 0.5}, r"leave out method\.f_n 0\.5"),
        ({"able": ["device-002", "devise-3"]}, r"method\.able: there is no device 'devise-3'; did you mean"),
        ({"stragglers": "sometimes"}, r"method\.stragglers 'sometimes' is not known"),
    ],
)
@pytest.mark.parametrize("method", ["fedavg", "fedfsc-plus"])
def test_options_that_do_not_go_together_are_refused(method: str, options: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ug.InputError, match=words):
        ug.run(method, options=options, **SMALL, out=str(tmp_path))
    options_of_all = StragglerOptions().__dict__.items()
    assert options_of_all <= METHODS[method]().__dict__.items()

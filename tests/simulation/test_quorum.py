"""Over-selection and quorum: the first that are back count, the others are late, and nobody is waited for in vain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.core import Method, Packet
from undergrowth.learning import AveragingServer, GradientClient

from ..fleet_files import fleet_file
from ..runs.objects import Own, linear
from ..stopping import facts, stopped_and_resumed
from .federations import Patient

SIZES = (8, 12, 16, 20, 8, 12)
Run = Callable[..., ug.Result]


@dataclass(frozen=True)
class Spoilt(GradientClient):
    """Some devices send what is no number."""

    devices: tuple[str, ...] = ()

    def finish(self, task, down, carry, shard, own, context):
        up, own = super().finish(task, down, carry, shard, own, context)
        if context.node in self.devices:
            up = Packet({name: value * float("nan") for name, value in up.tensors.items()}, up.scalars)
        return up, own


@dataclass(frozen=True)
class Plain(Method):
    """FedAvg with such a client, its uploads combined by the engine or handed over one by one."""

    client: GradientClient = GradientClient()
    server: AveragingServer = AveragingServer()


@pytest.fixture
def staggered(tmp_path: Path) -> str:
    """Six devices; a job of the first takes two seconds, one of the last twelve."""
    return fleet_file(tmp_path, **{f"class-{number}": {"latency": 1.0 + number} for number in range(6)})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(**settings: Any) -> ug.Result:
        return ug.run(**{"data": Own(sizes=SIZES), "model": linear, "rounds": 3, "out": str(tmp_path), **settings})

    return go


def by_outcome(result: ug.Result, round: int = 1) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in result.ledger.rows():
        if row.round == round:
            found.setdefault(row.outcome, []).append(row.child[-1])
    return {outcome: sorted(devices) for outcome, devices in found.items()}


@pytest.mark.parametrize(("quorum", "count"), [(0.5, 3), (0.34, 3), (1 / 3, 2), (0.01, 1), (0.9, 6), (1.0, 6)])
def test_a_quorum_of_the_first_that_are_back_ends_the_round(run, staggered, quorum, count):
    result = run(fleet=staggered, quorum=quorum)
    in_time, late = [str(number) for number in range(count)], [str(number) for number in range(count, 6)]
    for round in (1, 2, 3):
        assert by_outcome(result, round) == {"arrived": in_time, **({"late": late} if late else {})}
    assert result.ledger.simulated_seconds == pytest.approx(3 * 2 * count, rel=1e-3)
    alone = run(data=Own(sizes=SIZES[:count] + (0,) * (6 - count)))
    for name, value in alone.model.state_dict().items():
        assert value.allclose(result.model.state_dict()[name], atol=1e-6)


def test_who_is_late_has_cost_what_it_did_until_the_round_ended(run, staggered):
    late = [row for row in run(fleet=staggered, quorum=0.5).ledger.rows() if row.outcome == "late"]
    assert len(late) == 9
    assert all(row.bytes_up == 0 and row.end - row.start == pytest.approx(6.0, rel=1e-3) for row in late)


@pytest.mark.parametrize(("sample", "over", "asked", "needed"), [(0.5, 1.5, 5, 3), (0.5, 2, 6, 3), (1 / 6, 3, 3, 1)])
def test_over_selection_asks_more_and_takes_the_first(run, staggered, sample, over, asked, needed):
    result = run(fleet=staggered, sample=sample, over_select=over)
    for round in (1, 2, 3):
        found = by_outcome(result, round)
        everybody = sorted(device for devices in found.values() for device in devices)
        assert len(everybody) == asked
        assert found["arrived"] == everybody[:needed]
        assert found["late"] == everybody[needed:]


def test_over_selection_rounds_up_without_being_fooled_by_floats(run):
    result = run(data=Own(sizes=(4,) * 12), sample=10 / 12, over_select=1.1, rounds=1)
    assert result.history[0]["arrived"] + result.history[0]["late"] == 11


def test_refused_uploads_do_not_count_for_the_quorum_and_later_ones_take_their_place(run, staggered):
    method = Plain(Spoilt(devices=("phone-0", "phone-2")))
    found = by_outcome(run(method=method, fleet=staggered, quorum=0.5))
    assert found == {"refused": ["0", "2"], "arrived": ["1", "3", "4"], "late": ["5"]}


@pytest.mark.parametrize("spoilt", [5, 6])
def test_a_quorum_that_cannot_be_met_ends_with_the_last_device(run, staggered, spoilt):
    method = Plain(Spoilt(devices=tuple(f"phone-{number}" for number in range(spoilt))))
    result = run(method=method, fleet=staggered, quorum=0.5, if_all_refused="continue")
    assert [row["arrived"] for row in result.history] == [6 - spoilt] * 3
    assert [row["refused"] for row in result.history] == [spoilt] * 3
    assert result.ledger.simulated_seconds == pytest.approx(36.0, rel=1e-3)


@pytest.mark.parametrize("quorum", [0.5, 0.01])
def test_a_quorum_with_dropouts_failures_and_refusals_always_ends(run, staggered, quorum):
    method = Plain(Spoilt(devices=("phone-1",)))
    result = run(method=method, fleet=staggered, quorum=quorum, dropout=0.3, failure=0.3, rounds=12, over_select=1.3)
    assert len(result.history) == 12
    assert all(row["arrived"] + row["lost"] + row["refused"] + row["late"] == 6 for row in result.history)


def test_the_deadline_ends_a_round_whose_quorum_is_not_there_yet(run, staggered):
    result = run(fleet=staggered, quorum=0.9, deadline=7.0)
    assert by_outcome(result) == {"arrived": ["0", "1", "2"], "late": ["3", "4", "5"]}
    assert result.ledger.simulated_seconds == pytest.approx(21.0)


def test_combined_by_the_engine_or_one_by_one_the_model_is_the_same_bit_for_bit(run):
    equal = {"data": Own(sizes=(12,) * 6), "rounds": 4}
    folded = run(method=Plain(server=AveragingServer()), **equal)
    single = run(method=Plain(server=Patient()), **equal)
    all_at_once = run(quorum=0.5, **equal)  # equally fast: all are there in the instant in which half of them are
    assert folded.summary["model_digest"] == single.summary["model_digest"] == all_at_once.summary["model_digest"]
    assert facts(folded)[1:3] == facts(single)[1:3] == facts(all_at_once)[1:3]


@pytest.mark.parametrize("after", [1, 2])
def test_a_stopped_run_with_a_quorum_goes_on_bit_for_bit(run, staggered, after, tmp_path):
    whole = run(fleet=staggered, quorum=0.5, rounds=4)
    tree = {"fleet": staggered, "train": {"quorum": 0.5, "rounds": 4}}
    resumed = stopped_and_resumed(tree, after, str(tmp_path / "stopped"), data=Own(sizes=SIZES), model=linear)
    assert facts(resumed) == facts(whole)

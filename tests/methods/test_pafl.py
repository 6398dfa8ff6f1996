"""PaFL against a plain loop of its formulas, its limits, and schedules of the user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import undergrowth as ug
from tests.methods import tiny_federation as tiny
from undergrowth.core import InputError, Packet
from undergrowth.core.names import MODEL
from undergrowth.learning import Objective, Proximal, SoftTargets, TaskLoss
from undergrowth.methods import FedAvg, FedProx, PaFL
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.own_objects import changed_sources, source_records

LAM, ALPHA, T = 3.0, 0.6, 2.0


def loss_of_round(term: str, form: str, mu: float, received: tiny.Weights, device: str) -> tiny.Loss:
    """μ·L + (1 − μ)·D with D of eqs. 5 and 6 of the paper; the reference model is in evaluation mode."""
    shard, reference = tiny.SHARDS[device], tiny.module_with(received).eval()
    information = tiny.fisher(received, shard)

    def loss(module: nn.Module, rows: Tensor) -> Tensor:
        z = module(shard.x[rows])
        task_loss = functional.cross_entropy(z, shard.y[rows])
        g = functional.softmax(reference(shard.x[rows]).detach() / T, 1)
        divergence = (g * (g.log() - functional.log_softmax(z / T, 1))).sum(1).mean()
        if term == "h_ewc":
            pairs = [(information[name], value - received[name]) for name, value in module.named_parameters()]
            adapted = task_loss + LAM / 2 * sum((each * distance**2).sum() for each, distance in pairs)
        elif form == "printed":
            adapted = ALPHA * T**2 * task_loss + (1 - ALPHA) * divergence
        else:
            classes = z.shape[1] if form == "averaged" else 1
            adapted = (1 - ALPHA) * task_loss + ALPHA * T**2 * divergence / classes
        return mu * task_loss + (1 - mu) * adapted

    return loss


@pytest.mark.parametrize(
    ("term", "form", "mu"),
    [("h_kd", "cited", 0.0), ("h_kd", "printed", 0.2), ("h_kd", "averaged", 0.0), ("h_ewc", "cited", 0.3)],
)
def test_pafl(term: str, form: str, mu: float) -> None:
    """Plain training in rounds 0 and 1 of 4, then the loss of the adaptation."""
    model = tiny.initial()
    for number in range(4):
        weight = 1.0 if number < 2 else mu
        trained = [
            tiny.train(
                model, device, tiny.device_context(device, number), loss_of_round(term, form, weight, model, device)
            )
            for device in tiny.SHARDS
        ]
        model = tiny.mean(trained, tiny.SIZES)
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, rounds=4))
    method = PaFL(term=term, form=form, mu=mu, lam=LAM, alpha=ALPHA, temperature=T)
    tiny.assert_same(tiny.simulate(method, 4, task)[0][MODEL], model)


@pytest.mark.parametrize("term", ["h_kd", "h_ewc"])
def test_with_all_weight_on_the_plain_loss_it_is_fedavg_bit_for_bit(term: str) -> None:
    found, average = (tiny.simulate(method, 3)[0][MODEL] for method in (PaFL(term=term, mu=1.0, start=0.0), FedAvg()))
    assert all(torch.equal(found[name], value) for name, value in average.items())


@pytest.mark.parametrize(
    ("rounds", "start", "first"), [(3, 0.5, 2), (4, 0.5, 2), (10, 0.3, 3), (25, 0.28, 7), (3, 0.0, 0), (3, 1.0, 3)]
)
def test_the_switch_is_in_the_right_round(rounds: int, start: float, first: int) -> None:
    """Packets name the first round with the loss of this one, and weigh the same from round to round."""
    method = PaFL(start=start)
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, rounds=rounds))
    since = [method.server._since(number, rounds) for number in range(rounds)]
    assert since == ["0" if number < first else str(first) for number in range(rounds)]
    for number in range(rounds):
        packet = Packet({}, tags={} if since[number] == "0" else {"since": since[number]})
        (client,) = method.client.updates(task, packet).values()
        assert (client.objective == TaskLoss()) == (number < first)  # type: ignore[attr-defined]


def test_the_model_is_that_of_fedavg_until_the_switch() -> None:
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, rounds=4))
    for rounds, equal in ((2, True), (3, False)):
        found, average = (tiny.simulate(method, rounds, task)[0][MODEL] for method in (PaFL(), FedAvg()))
        assert all(torch.equal(found[name], value) for name, value in average.items()) == equal


def proximal_schedule(round: int, rounds: int) -> tuple[float, Objective]:
    return 0.5, TaskLoss() + Proximal(1.4)


def test_a_schedule_of_the_user_can_make_it_fedprox() -> None:
    """0.5·L + 0.5·(L + 0.7·‖·‖²) is FedProx with mu = 0.7."""
    tiny.assert_same(
        tiny.simulate(PaFL(term=proximal_schedule), 2)[0][MODEL], tiny.simulate(FedProx(mu=0.7), 2)[0][MODEL]
    )


def test_a_schedule_that_returns_something_else_is_refused() -> None:
    with pytest.raises(InputError, match=r"method\.term: the schedule returned \(2, .* from 0 to 1, and an Objective"):
        tiny.simulate(PaFL(term=lambda round, rounds: (2, SoftTargets(1.0))), 1)


def test_an_unknown_term_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"method\.term 'h_dk' is not known; did you mean 'h_kd'"):
        ug.run("pafl", options={"term": "h_dk"}, rounds=1, out=str(tmp_path))


def test_a_schedule_by_name_is_imported_and_its_source_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "from undergrowth.learning import TaskLoss, Proximal",
        "def alternate(round, rounds):",
        "    return (round + 1) % 2, TaskLoss() + Proximal(1.0)",
    ]
    file = tmp_path / "fair_schedules.py"
    file.write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {"model": "logistic", "clients": 3, "rounds": 3, "out": str(tmp_path / "runs")}
    found = ug.run("pafl", options={"term": "fair_schedules:alternate"}, engine="processes", **settings)
    plain = ug.run("fedavg", **settings)
    assert found.history[0]["loss"] == pytest.approx(plain.history[0]["loss"])
    assert found.history[1]["loss"] != pytest.approx(plain.history[1]["loss"], rel=1e-6)
    with pytest.raises(InputError, match="has no 'alternates'; did you mean 'alternate'"):
        ug.run("pafl", options={"term": "fair_schedules:alternates"}, **settings)
    experiment = parse_experiment({"method": {"name": "pafl", "term": "fair_schedules:alternate"}})
    (record,) = source_records(experiment, {})
    assert record["module"] == "fair_schedules" and not changed_sources([record])
    file.write_text(file.read_text() + "\n# changed")
    assert changed_sources([record]) == ["fair_schedules:alternate"]

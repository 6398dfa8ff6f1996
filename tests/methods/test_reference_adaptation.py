"""Local adaptation against plain loops of its formulas, and what must hold for every kind of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.methods import tiny_federation as tiny
from undergrowth.core import Context, Packet, Shard
from undergrowth.learning import elastic_loss
from undergrowth.learning.gradient_client import split_samples
from undergrowth.methods import Adapt, FedProx, Local
from undergrowth.methods.adapt.rules import AdaptationClient

ROUNDS = 2
LossOf = Callable[[str, tiny.Weights], tiny.Loss]  # the loss of a device, with the federated model


def adapted(method: Adapt) -> dict[str, tiny.Weights]:
    """The model of every device after adaptation; the federated one has not changed."""
    state, own = tiny.simulate(method, ROUNDS)
    assert (
        all(torch.equal(state["model"][name], value) for name, value in tiny.initial().items()) or method.how == "alone"
    )
    return {device: method.personal(tiny.TASK, state, own[device], device) for device in tiny.SHARDS}


def reference(loss_of: LossOf) -> dict[str, tiny.Weights]:
    """Every device trains from the federated model."""
    found: dict[str, tiny.Weights] = {}
    for device in tiny.SHARDS:
        weights: tiny.Weights = tiny.initial()
        for number in range(ROUNDS):
            weights = tiny.train(weights, device, tiny.device_context(device, number), loss_of(device, tiny.initial()))
        found[device] = weights
    return found


def plain(device: str, federated: tiny.Weights) -> tiny.Loss:
    return tiny.cross_entropy(tiny.SHARDS[device])


def pulled(device: str, federated: tiny.Weights, strength: float, importance: tiny.Weights) -> tiny.Loss:
    """L(v) + (λ/2)·Σ F_i·(v_i − w_i)²."""

    def loss(module: nn.Module, rows: Tensor) -> Tensor:
        distances = [
            (importance[name] * (value - federated[name]).square()).sum() for name, value in module.named_parameters()
        ]
        return tiny.cross_entropy(tiny.SHARDS[device])(module, rows) + strength / 2 * torch.stack(distances).sum()

    return loss


def ditto(device: str, federated: tiny.Weights) -> tiny.Loss:
    return pulled(device, federated, 0.7, {name: torch.ones_like(value) for name, value in federated.items()})


def ewc(device: str, federated: tiny.Weights) -> tiny.Loss:
    return pulled(device, federated, 20.0, tiny.fisher(federated, tiny.SHARDS[device]))


def distillation(task: float, teacher: float, temperature: float = 2.0) -> LossOf:
    """`task`·L(v) + `teacher`·KL(softmax(w(x)/T) ‖ softmax(v(x)/T))."""

    def loss_of(device: str, federated: tiny.Weights) -> tiny.Loss:
        shard, guide = tiny.SHARDS[device], tiny.module_with(federated).eval()

        def loss(module: nn.Module, rows: Tensor) -> Tensor:
            logits = module(shard.x[rows])
            wanted = (guide(shard.x[rows]) / temperature).softmax(1).detach()
            divergence = functional.kl_div((logits / temperature).log_softmax(1), wanted, reduction="batchmean")
            return task * functional.cross_entropy(logits, shard.y[rows]) + teacher * divergence

        return loss

    return loss_of


def test_adapt() -> None:
    """Fine-tuning: plain training from the federated model, round after round."""
    found, expected = adapted(Adapt()), reference(plain)
    for device in tiny.SHARDS:
        tiny.assert_same(found[device], expected[device])


@pytest.mark.parametrize(("how", "loss_of"), [("ditto:0.7", ditto), ("ewc:20", ewc)], ids=["ditto", "ewc"])
def test_terms_compare_with_the_federated_model_in_every_round(how: str, loss_of: LossOf) -> None:
    found, expected = adapted(Adapt(how)), reference(loss_of)
    for device in tiny.SHARDS:
        tiny.assert_same(found[device], expected[device])


@pytest.mark.parametrize(
    ("form", "weights"), [("cited", (0.4, 0.6 * 4)), ("printed", (0.6 * 4, 0.4)), ("averaged", (0.4, 0.6 * 4 / 3))]
)
def test_distillation(form: str, weights: tuple[float, float]) -> None:
    found, expected = adapted(Adapt("kd:2:0.6", form=form)), reference(distillation(*weights))
    for device in tiny.SHARDS:
        tiny.assert_same(found[device], expected[device])


def test_freeze_trains_the_last_layer_and_changes_nothing_else() -> None:
    found = adapted(Adapt("freeze"))
    for device, shard in tiny.SHARDS.items():
        module = tiny.module_with(tiny.initial()).eval()
        for number in range(ROUNDS):
            orders = tiny.shuffles(tiny.device_context(device, number), len(shard))
            tiny.descend(module, orders, tiny.cross_entropy(shard), torch.optim.SGD(module.head.parameters(), 0.1, 0.5))
        tiny.assert_same(found[device], tiny.weights_of(module))
        changed = {name for name, value in tiny.initial().items() if not torch.equal(found[device][name], value)}
        assert changed == {"head.weight", "head.bias"}


def test_alone_is_the_method_local() -> None:
    found = adapted(Adapt("alone"))
    state, own = tiny.simulate(Local(), ROUNDS)
    for device in tiny.SHARDS:
        tiny.assert_same(found[device], Local().personal(tiny.TASK, state, own[device], device))
    start = tiny.initial()
    tiny.assert_same(
        found["a"], tiny.train(tiny.train(start, "a", tiny.device_context("a", 0)), "a", tiny.device_context("a", 1))
    )


def test_distillation_with_all_weight_on_the_task_is_fine_tuning() -> None:
    found, fine_tuned = adapted(Adapt("kd:6:0")), adapted(Adapt())
    for device in tiny.SHARDS:
        assert all(torch.equal(found[device][name], value) for name, value in fine_tuned[device].items())


def test_consolidation_with_equal_importance_is_fedprox() -> None:
    """With F = 1 one job from the received model is what a device of FedProx does with the same weight."""
    client = AdaptationClient(objective=elastic_loss(0.3), options=Adapt(), keeps_federated=True)
    ones = {name: torch.ones_like(tiny.initial()[name]) for name in tiny.TASK.model.parameters}
    own = {"information": ones, "federated": tiny.initial(), "model": tiny.initial()}
    for device, shard in tiny.SHARDS.items():
        context = tiny.device_context(device, 0)
        _, kept = client.local(tiny.TASK, Packet(tiny.initial()), shard, own, context)
        expected, _ = FedProx(mu=0.3).client.local(tiny.TASK, Packet(tiny.initial()), shard, {}, context)
        tiny.assert_same(kept["model"], expected.tensors)


def test_ditto_without_a_pull_is_fine_tuning_and_with_a_strong_one_the_federated_model() -> None:
    found, fine_tuned, near = adapted(Adapt("ditto:0")), adapted(Adapt()), adapted(Adapt("ditto:9"))
    for device in tiny.SHARDS:
        tiny.assert_same(found[device], fine_tuned[device])
        far, close = (
            sum(
                float((each[device][name] - tiny.initial()[name]).square().sum()) for name in tiny.TASK.model.parameters
            )
            for each in (fine_tuned, near)
        )
        assert close < 0.1 * far


# Early stopping ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "patience"), [(0.1, 2), (3.0, 2), (3.0, 0)], ids=["improving", "diverging", "diverging to the end"]
)
def test_a_device_keeps_its_best_model_and_stops(lr: float, patience: int) -> None:
    rounds = 6
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, lr=lr))
    method = Adapt(validation=0.25, patience=patience)
    state, own = tiny.simulate(method, rounds, task=task)
    asked: list[int] = []
    for device in tiny.SHARDS:
        training, held_out = tiny.parts(device, 0.25)
        weights = best = tiny.initial()
        lowest, waited, done = tiny.loss_on(best, held_out), 0, 0
        while done < rounds and (waited < patience or not patience):
            module = tiny.module_with(weights)
            optimiser = torch.optim.SGD(module.parameters(), lr, 0.5)
            orders = tiny.shuffles(tiny.device_context(device, done), len(training), tiny.EPOCHS)
            tiny.descend(module, orders, tiny.cross_entropy(training), optimiser)
            weights, done = tiny.weights_of(module), done + 1
            found = tiny.loss_on(weights, held_out)
            best, lowest, waited = (weights, found, 0) if found < lowest else (best, lowest, waited + 1)
        asked.append(done)
        tiny.assert_same(method.personal(task, state, own[device], device), best)
    assert (min(asked) < rounds) == (patience > 0)  # whether a device has stopped early


@pytest.mark.parametrize("how", ["fine-tune", "ditto"])
def test_a_device_may_have_samples_to_validate_with_only_later(how: str) -> None:
    """A price is traced for several sizes of a device's shard, and the samples of a stream change."""
    method = Adapt(how, validation=0.25, patience=3)
    down, context = Packet(tiny.initial()), tiny.device_context("b", 0)
    _, own = method.client.local(tiny.TASK, down, tiny.SHARDS["b"].take(torch.arange(2)), {}, context)
    assert "loss" not in own
    _, own = method.client.local(tiny.TASK, down, tiny.SHARDS["b"], own, tiny.device_context("b", 1))
    assert own["loss"] <= tiny.loss_on(tiny.initial(), tiny.parts("b", 0.25)[1])


def test_the_parts_are_disjoint_fixed_and_never_empty() -> None:
    shard = Shard(torch.arange(7.0)[:, None], torch.arange(7))
    context = Context(1, "a", 5, 3)
    training, held_out = split_samples(shard, 0.3, context)
    assert sorted([*training.y.tolist(), *held_out.y.tolist()]) == list(range(7)) and len(held_out) == 2
    again = split_samples(shard, 0.3, context._replace(round=9, turn=1))
    assert torch.equal(again[1].y, held_out.y)
    one = shard.take(torch.arange(1))
    assert [len(each) for each in split_samples(one, 0.9, context)] == [1, 0]
    assert [len(each) for each in split_samples(shard, 0.99, context)] == [1, 6]
    assert [len(each) for each in split_samples(shard, 0.0, context)] == [7, 0]

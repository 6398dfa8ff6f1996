"""Fair aggregation, q-FedAvg and TERM: reference loops, limits, and the optimum of a convex problem."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn import functional

from tests.methods import tiny_federation as tiny
from undergrowth.core import Model, Packet, TiltedMean, WeightedMean, add_upload
from undergrowth.core.names import MODEL
from undergrowth.exchange import Links
from undergrowth.learning import AveragingServer
from undergrowth.methods import FedAvg, QFedAvg, Term

SIZES = {device: len(shard) for device, shard in tiny.SHARDS.items()}
ROUNDS = 300  # until the convex problem is solved
PARAMETERS = tiny.TASK.model.parameters


class UniformFedAvg(FedAvg):
    """FedAvg with equal weights of all devices."""

    server = AveragingServer(reducer=WeightedMean(None))  # type: ignore[assignment]


@pytest.mark.parametrize(("q", "weighting", "mu"), [(0.5, "samples", 0.0), (5.0, "uniform", 0.7)])
def test_qfedavg(q: float, weighting: str, mu: float) -> None:
    """Δw = L·(w − w_k), Δ_k = F^q·Δw, h_k = q·F^(q−1)·‖Δw‖² + L·F^q, w ← w − ΣΔ_k / Σh_k; buffers: mean by h_k."""
    model = tiny.initial()
    for number in range(2):
        deltas, hs, trained = [], [], []
        for device in tiny.SHARDS:
            n = SIZES[device] if weighting == "samples" else 1
            loss = tiny.proximal(tiny.SHARDS[device], model, mu)
            w_k = tiny.train(model, device, tiny.device_context(device, number), loss)
            f = tiny.loss_on(model, tiny.SHARDS[device])
            step = {name: (model[name] - w_k[name]) / tiny.LR for name in PARAMETERS}
            norm = sum(float((value**2).sum()) for value in step.values())
            deltas.append({name: n * f**q * value for name, value in step.items()})
            hs.append(n * (q * f ** (q - 1) * norm + f**q / tiny.LR))
            trained.append(w_k)
        moved = {name: model[name] - sum(delta[name] for delta in deltas) / sum(hs) for name in PARAMETERS}
        model = {**tiny.mean(trained, hs), **moved}
    tiny.assert_same(tiny.simulate(QFedAvg(q=q, weighting=weighting, mu=mu), 2)[0][MODEL], model)


@pytest.mark.parametrize(("t", "weighting"), [(1.5, "samples"), (-20.0, "uniform")])
def test_term(t: float, weighting: str) -> None:
    """w ← Σ p_k·exp(t·F_k)·w_k / Σ p·exp(t·F)."""
    model = tiny.initial()
    for number in range(2):
        losses = {device: tiny.loss_on(model, shard) for device, shard in tiny.SHARDS.items()}
        weights = [math.exp(t * losses[k]) * (SIZES[k] if weighting == "samples" else 1) for k in tiny.SHARDS]
        model = tiny.mean(
            [tiny.train(model, device, tiny.device_context(device, number)) for device in tiny.SHARDS], weights
        )
    tiny.assert_same(tiny.simulate(Term(t=t, weighting=weighting), 2)[0][MODEL], model)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("kind", [QFedAvg, Term])
def test_without_fairness_it_is_fedavg(kind: type[QFedAvg | Term], weighting: str) -> None:
    method = kind(**({"q": 0.0} if kind is QFedAvg else {"t": 1e-13}), weighting=weighting)
    average = FedAvg() if weighting == "samples" else UniformFedAvg()
    tiny.assert_same(tiny.simulate(method, 3)[0][MODEL], tiny.simulate(average, 3)[0][MODEL])


@pytest.mark.parametrize(("up", "down"), [("topk:0.2", "none"), ("int4", "none"), ("none", "int8")])
@pytest.mark.parametrize("method", [QFedAvg(q=0.0), Term(t=1e-13)])
def test_without_fairness_it_is_fedavg_on_lossy_links(method: QFedAvg | Term, up: str, down: str) -> None:
    """Also in what a link remembers: both send models, and a link the changes of these."""
    measured = frozenset(tiny.TASK.model.buffers)
    models = [
        tiny.simulate(each, 3, links=Links(up, down, feedback, measured))[0][MODEL]
        for each, feedback in ((method, True), (FedAvg(), True), (FedAvg(), False))
    ]
    tiny.assert_same(models[0], models[1])
    forgetful = all(torch.allclose(models[1][name], models[2][name]) for name in PARAMETERS)
    assert forgetful == (up == "none")


@pytest.mark.parametrize("t", [-20.0, 20.0])
@pytest.mark.parametrize("weight", ["samples", None])
def test_tilted_weights_of_large_losses_stay_finite(t: float, weight: str | None) -> None:
    reducer, partial = TiltedMean(t, weight=weight), None
    losses = [100.0, 0.0, 55.0, 100.0]
    for number, loss in enumerate(losses):
        up = Packet({"w": torch.tensor([float(number)])}, {"samples": 3.0, "loss": loss})
        partial = add_upload(reducer, partial, str(number), up)
    assert partial is not None
    wanted = {20.0: 1.5, -20.0: 1.0}[t]  # the mean over devices 0 and 3, or device 1 alone
    assert float(partial.tensors["w"]) == pytest.approx(wanted)
    assert partial.scalars[weight or "uploads"] == (12.0 if weight else 4.0)
    assert all(math.isfinite(value) for value in partial.scalars.values())


@pytest.mark.parametrize("weight", ["samples", None])
def test_an_edge_server_sends_the_tilted_mean_of_its_devices_and_the_sum_of_their_weights(weight: str | None) -> None:
    t, reducer = 1.5, TiltedMean(1.5, weight=weight)
    devices = {"a": (1.0, 4, 0.3), "b": (5.0, 1, 2.0), "c": (-2.0, 7, 1.1)}  # w_k, n_k and F_k
    weights = {name: (n if weight else 1) * math.exp(t * loss) for name, (_, n, loss) in devices.items()}

    def combine(names: str) -> Packet:
        partial = None
        for name in names:
            w, n, loss = devices[name]
            up = Packet({"w": torch.tensor([w], dtype=torch.float64)}, {"samples": float(n), "loss": loss})
            partial = add_upload(reducer, partial, name, up)
        assert partial is not None
        return partial

    def check(partial: Packet, names: str) -> None:
        total = sum(weights[name] for name in names)
        assert float(partial.tensors["w"]) == pytest.approx(sum(weights[k] * devices[k][0] for k in names) / total)
        assert partial.scalars["log_weight"] == pytest.approx(math.log(total))
        assert partial.scalars["loss"] == pytest.approx(sum(weights[k] * devices[k][2] for k in names) / total)
        assert partial.scalars[weight or "uploads"] == sum(devices[k][1] if weight else 1 for k in names)

    edges = [combine("ab"), combine("c")]
    check(edges[0], "ab")
    check(reducer.merge(*(reducer.relay("edge", partial, 0) for partial in edges)), "abc")


@pytest.mark.parametrize("loss", [1e-12, 1e3])
def test_large_q_stays_in_the_range_of_single_precision(loss: float) -> None:
    """F^15 of these losses does not fit into float32, but neither weights nor changes need it."""
    shift = torch.full((3,), -loss if loss > 1 else 60.0)
    shift[0] = loss if loss > 1 else -60.0
    build = tiny.TASK.model.build

    def biased() -> nn.Module:
        module = build().float()
        with torch.no_grad():
            module.head.weight.zero_()
            module.head.bias.copy_(shift)
        return module

    method = QFedAvg(q=15.0)
    task = replace(tiny.TASK, model=Model(biased))
    shards = {device: replace(shard, x=shard.x.float()) for device, shard in tiny.SHARDS.items()}
    model = task.model.initial(0)
    ups = [
        method.client.local(task, Packet(model), shard, {}, tiny.device_context(device, 0))[0]
        for device, shard in shards.items()
    ]
    partial = None
    for device, up in zip(shards, ups, strict=True):
        partial = add_upload(method.server.reducer, partial, device, up)
    assert partial is not None and 0 < partial.scalars["h"] < math.inf
    after = method.server.step(task, {MODEL: model}, partial, tiny.device_context("root", 0))[MODEL]
    assert all(value.isfinite().all() for value in after.values())
    assert not torch.equal(after["head.bias"], model["head.bias"])


def test_the_variance_of_losses_falls_with_q_on_a_convex_problem() -> None:
    """Multinomial regression with a full batch per round, run to the end, against a direct optimiser of q-FFL."""
    train_settings = replace(tiny.TASK.train, rounds=ROUNDS, epochs=1, batch=32, lr=1.0, momentum=0.0)
    task = replace(tiny.TASK, model=Model(lambda: nn.Linear(4, 3).double()), train=train_settings)
    p = np.array(list(SIZES.values())) / sum(SIZES.values())

    def losses(weight: Tensor, bias: Tensor) -> Tensor:
        logits = [(functional.linear(shard.x, weight, bias), shard.y) for shard in tiny.SHARDS.values()]
        return torch.stack([functional.cross_entropy(*each) for each in logits])

    def optimum(q: float) -> np.ndarray:
        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            w = torch.tensor(values, requires_grad=True)
            each = losses(w[:12].reshape(3, 4), w[12:])
            total = (torch.tensor(p) / (q + 1) * each ** (q + 1)).sum()
            (gradient,) = torch.autograd.grad(total, w)
            return float(total.detach()), gradient.numpy()

        found = minimize(objective, np.zeros(15), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}).x
        w = torch.tensor(found)
        return losses(w[:12].reshape(3, 4), w[12:]).numpy()

    variances = []
    for q in (0.0, 1.0, 5.0):
        model = tiny.simulate(QFedAvg(q=q), ROUNDS, task)[0][MODEL]
        found = losses(model["weight"], model["bias"]).numpy()
        np.testing.assert_allclose(found, optimum(q), atol=5e-4)
        variances.append(float(np.var(found)))
    assert variances[0] > 1.3 * variances[1] > 1.3 * variances[2]

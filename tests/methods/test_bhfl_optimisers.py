"""The optimisers of a node and the selectors of residuals, each against its formula."""

from __future__ import annotations

import math

import torch

from undergrowth.core import Model, Packet, Task
from undergrowth.methods.bhfl.node_optimiser import NodeOptimiser, ReceivedModel
from undergrowth.methods.bhfl.residuals import ResidualSelector

TASK = Task(Model(lambda: torch.nn.Linear(1, 1, bias=False).double()), classes=1)
NAME = "weight"
SHARE, RATE = 0.25, 0.3
# What a node receives in three merges: the mean of its children, and residuals with their samples and links.
RECEIVED = [2.0, -1.0, 0.5]
RESIDUALS = [[], [(3.0, 10.0, 2.0)], [(1.0, 10.0, 2.0), (-4.0, 30.0, 3.0)]]


def weights(value: float) -> dict[str, torch.Tensor]:
    return {NAME: torch.tensor([[value]], dtype=torch.float64)}


def merged(text: str) -> list[float]:
    """The model after each merge, from 1.0."""
    model, memory, found = weights(1.0), {}, []
    for received, residuals in zip(RECEIVED, RESIDUALS, strict=True):
        inputs = [ReceivedModel(weights(value), samples, hops) for value, samples, hops in residuals]
        optimiser = NodeOptimiser(text, RATE, SHARE)
        model, memory = optimiser.merge(TASK, model, ReceivedModel(weights(received), 20.0), inputs, memory)
        found.append(float(model[NAME]))
    return found


def targets() -> list[tuple[float, float | None]]:
    """The mean of the children, and the mean of the residuals by samples."""
    means = [sum(v * n for v, n, _ in each) / sum(n for _, n, _ in each) if each else None for each in RESIDUALS]
    return list(zip(RECEIVED, means, strict=True))


def close(found: list[float], expected: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(found, expected, strict=True))


def test_average_and_moving_average() -> None:
    model, expected, window, over_two, other = 1.0, [], [], [], 1.0
    for main, second in targets():
        target = main if second is None else (1 - SHARE) * main + SHARE * second
        model += RATE * (target - model)
        expected.append(model)
        window = [*window, other + RATE * (target - other)][-2:]
        other = sum(window) / len(window)
        over_two.append(other)
    assert close(merged("average"), expected)
    assert close(merged("moving-average:2"), over_two)
    assert close(merged("moving-average:1"), expected)


def test_momentum_has_a_second_velocity_for_residuals() -> None:
    model, velocity, second_velocity, expected = 1.0, 0.0, 0.0, []
    for main, second in targets():
        velocity = 0.6 * velocity + (main - model)
        step = velocity
        if second is not None:
            second_velocity = 0.6 * second_velocity + (second - model)
            step = (1 - SHARE) * velocity + SHARE * second_velocity
        model += RATE * step
        expected.append(model)
    assert close(merged("momentum:0.6"), expected)


def test_the_fedopt_family_has_second_accumulators_for_residuals() -> None:
    rules = {
        "fedadam": (0.9, lambda v, d: 0.99 * v + 0.01 * d * d),
        "fedyogi": (0.9, lambda v, d: v - 0.01 * d * d * math.copysign(1.0, v - d * d)),
        "fedadagrad": (0.0, lambda v, d: v + d * d),
    }
    for text, (beta, next_square) in rules.items():
        model, expected = 1.0, []
        moments = {"main": (0.0, 1e-6), "second": (0.0, 1e-6)}
        for main, second in targets():
            steps = {}
            for name, target in (("main", main), ("second", second)):
                if target is not None:
                    m, v = moments[name]
                    change = target - model
                    m, v = beta * m + (1 - beta) * change, next_square(v, change)
                    moments[name], steps[name] = (m, v), m / (math.sqrt(v) + 1e-3)
            step = steps["main"] if "second" not in steps else (1 - SHARE) * steps["main"] + SHARE * steps["second"]
            model += RATE * step
            expected.append(model)
        assert close(merged(text), expected), text


def test_distance_weighs_a_residual_by_its_samples_and_its_links() -> None:
    model, expected = 1.0, []
    for received, residuals in zip(RECEIVED, RESIDUALS, strict=True):
        inputs = [(received, 20.0), *((value, n * 0.5 ** (hops - 1)) for value, n, hops in residuals)]
        target = sum(value * n for value, n in inputs) / sum(n for _, n in inputs)
        model += RATE * (target - model)
        expected.append(model)
    assert close(merged("distance:0.5"), expected)


TWO = Task(Model(lambda: torch.nn.Linear(2, 1, bias=False).double()), classes=1)


def upload(x: float, y: float, samples: float, loss: float) -> Packet:
    return Packet({NAME: torch.tensor([[x, y]], dtype=torch.float64)}, {"samples": samples, "loss": loss})


def test_selectors() -> None:
    model = {NAME: torch.tensor([[1.0, 1.0]], dtype=torch.float64)}
    uploads = {"a": upload(4, 1, 10, 0.1), "b": upload(3, 2, 10, 0.3), "c": upload(1, 0.5, 10, 0.2)}
    # changes (3, 0), (2, 1), (0, −0.5): the mean change is along (5, 0.5), from which c points away most, then b

    def select(text: str) -> dict[str, ReceivedModel]:
        return ResidualSelector(text).select(TWO, "edge", model, uploads)

    assert list(select("norm:1")) == ["a"] and list(select("norm:2")) == ["a", "b"]
    assert list(select("loss:1")) == ["b"] and list(select("loss:2")) == ["b", "c"]
    assert list(select("cosine:1")) == ["c"] and list(select("cosine:2")) == ["b", "c"]
    assert list(select("norm:9")) == ["a", "b", "c"] and select("norm:0") == {} == select("none")
    (origin, both), = select("norm:2:mean").items()  # fmt: skip
    assert origin == "edge" and both.samples == 20
    assert both.weights[NAME].tolist() == [[3.5, 1.5]]


def test_models_of_devices_that_did_not_train_are_no_residuals() -> None:
    """Batches may be too small for BatchNorm. Two such models, which have no weight, would have zeros as their mean."""
    uploads = {child: Packet(weights(9.0), {"samples": 0.0}) for child in ("a", "b")}
    for text in ("norm:2", "cosine:2", "loss:2", "norm:2:mean"):
        assert ResidualSelector(text).select(TASK, "edge", weights(1.0), uploads) == {}
    uploads["c"] = Packet(weights(2.0), {"samples": 5.0})
    assert set(ResidualSelector("norm:2").select(TASK, "edge", weights(1.0), uploads)) == {"c"}

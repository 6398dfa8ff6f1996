"""FedMeZO and DistMeZO against plain loops of their formulas, and what must hold for FedMeZO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undergrowth as ug
from tests.learning.streams import normals
from tests.methods import tiny_federation as tiny
from undergrowth.core import Answer, Context, Model, Node, Packet, RunError, Sampler, Shard, Task, View
from undergrowth.learning.directions import derive
from undergrowth.learning.zeroth_order import direction, shift
from undergrowth.methods import DistMeZO, FedMeZO
from undergrowth.methods.fedmezo import replica
from undergrowth.methods.fedmezo.client import FedMeZOClient
from undergrowth.methods.fedmezo.replica import RoundOf

PARAMETERS, CPU = tiny.TASK.model.parameters, torch.device("cpu")
EPSILON, STEP = 1e-3, 0.05


# Reference loops ---------------------------------------------------------------------------------------------------


def z_of(key: Tensor, number: int) -> dict[str, Tensor]:
    """Direction `number` of a key, as tensors of the model."""
    shapes = [(name, tiny.TASK.model.shapes[name]) for name in PARAMETERS]
    along = direction(key, number)
    return {
        name: normals(derive(along, place), 0, shape.numel()).view(shape).double()
        for place, (name, shape) in enumerate(shapes)
    }


def moved(weights: tiny.Weights, z: tiny.Weights, scale: float) -> dict[str, Tensor]:
    return {name: value + scale * z[name] if name in z else value for name, value in weights.items()}


def slope(weights: tiny.Weights, z: tiny.Weights, x: Tensor, y: Tensor) -> float:
    first, second = (tiny.loss_on(moved(weights, z, scale), Shard(x, y)) for scale in (EPSILON, -EPSILON))
    return (first - second) / (2 * EPSILON)


def asked(number: int, sample: float) -> list[str]:
    count = round(3 * sample)
    picked = torch.randperm(3, generator=tiny.server_context(number).generator("sample"))[:count].sort().values
    return list(tiny.SHARDS) if count == 3 else [list(tiny.SHARDS)[place] for place in picked.tolist()]


@pytest.mark.parametrize("start", ["sent", "seed"])
@pytest.mark.parametrize("sample", [1.0, 0.67])
def test_fedmezo(sample: float, start: str) -> None:
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, sample=sample, schedule="linear"))
    state, _ = tiny.simulate(FedMeZO(directions=3, epsilon=EPSILON, step_size=STEP, initial=start), 3, task)
    w, seed = tiny.initial(), tiny.server_context(0).key("model")
    for number in range(3):
        key = RoundOf(seed, number).key(CPU)
        shards = [tiny.SHARDS[device] for device in asked(number, sample)]
        directions = [z_of(key, place) for place in range(3)]
        slopes = []
        for z in directions:
            total = sum(len(shard) * slope(w, z, shard.x, shard.y) for shard in shards)
            slopes.append(total / sum(len(shard) for shard in shards))
        for g, z in zip(slopes, directions, strict=True):
            w = moved(w, z, -STEP * (1 - number / 3) * g / 3)
    tiny.assert_same(state["model"], w)


def test_distmezo() -> None:
    state, _ = tiny.simulate(DistMeZO(epsilon=EPSILON, step_size=STEP), 2)
    w = tiny.initial()
    for number in range(2):
        models = []
        for device, shard in tiny.SHARDS.items():
            context, own = tiny.device_context(device, number), w
            key = torch.tensor(context.key("directions"))
            for rows in [
                rows for order in tiny.shuffles(context, len(shard), tiny.EPOCHS) for rows in order.split(tiny.BATCH)
            ]:
                key = derive(key, 0)
                directions = [z_of(key, place) for place in range(2)]
                slopes = [slope(own, z, shard.x[rows], shard.y[rows]) for z in directions]
                for g, z in zip(slopes, directions, strict=True):
                    own = moved(own, z, -STEP * g / 2)
            models.append(own)
        w = tiny.mean(models, [len(shard) for shard in tiny.SHARDS.values()])
    tiny.assert_same(state["model"], w)


# What must hold ----------------------------------------------------------------------------------------------------

DIGITS: dict[str, Any] = {
    "model": "logistic", "data_options": {"train_samples": 200, "holdout": 0.0}, "progress": False, "rounds": 20,
    "checkpoint_every": 20, "evaluate_every": 20, "engine": "serial", "batch": 200,
}  # fmt: skip


def test_the_model_does_not_depend_on_the_number_of_devices_and_their_data(tmp_path: Path) -> None:
    settings = DIGITS | {"options": {"step_size": 0.03}, "engine": "vector", "out": str(tmp_path)}
    federations = [(1, "iid"), (2, "dirichlet:0.05"), (10, "iid"), (10, "dirichlet:0.05")]
    runs = [ug.run("fedmezo", clients=clients, partition=rule, **settings) for clients, rule in federations]
    start = ug.run("fedmezo", **settings | {"options": {"step_size": 0.0}, "rounds": 1}, clients=2)
    expected = runs[0].model.state_dict()
    for run in runs[1:]:
        torch.testing.assert_close(run.model.state_dict(), expected, rtol=0, atol=1e-4)
    moved_by = max((value - start.model.state_dict()[name]).abs().max() for name, value in expected.items())
    assert moved_by > 0.02  # they did learn


@pytest.mark.parametrize(
    ("model", "start", "first"),
    [("logistic", "sent", 16 + 4 * 650), ("mlp", "sent", 16 + 4 * 15010), ("mlp", "seed", 16)],
)
def test_a_round_takes_at_most_64_bytes_whatever_the_model(model: str, start: str, first: int, tmp_path: Path) -> None:
    settings = DIGITS | {"model": model, "rounds": 2, "clients": 2, "out": str(tmp_path)}
    rows = list(ug.run("fedmezo", options={"initial": start}, **settings).ledger.rows())
    assert [(row.bytes_down, row.bytes_up) for row in rows] == [(first, 24)] * 2 + [(24, 24)] * 2
    assert FedMeZO().source_bytes(rounds=2, devices=2) == 2 * 2 * 5


@dataclass(frozen=True)
class JoiningSampler(Sampler):
    """Device b takes part in the first round, if `first`, and from round 15 on; device a always."""

    first: bool

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        return ["a", "b"] if context.round >= 14 or (self.first and context.round == 0) else ["a"]


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 70), nn.Tanh(), nn.Linear(70, 3))


FLOAT32 = {name: Shard(shard.x.float(), shard.y) for name, shard in tiny.SHARDS.items()}


@pytest.mark.parametrize(("start", "first"), [("seed", False), ("seed", True), ("sent", True), ("sent", False)])
def test_a_device_that_joins_in_round_15_and_replays_has_the_same_bits(start: str, first: bool) -> None:
    method, task = FedMeZO(initial=start), Task(Model(small_model), 3, sampler=JoiningSampler(first))
    packets, own, node = federation_by_hand(method, task, rounds=16)
    assert {(round, device) for round, device in packets if device == "b" and round > 0} == {(14, "b"), (15, "b")}
    received = packets[14, "b"]
    assert len(received.tensors["slopes"]) == {("seed", False): 14, ("sent", False): 0}.get((start, first), 14)
    assert ("model/0.weight" in received.tensors) == (start == "sent" and not first)
    assert own["a"]["round"] == own["b"]["round"] == 15
    for name, value in own["a"]["model"].items():
        assert value is not own["b"]["model"][name]  # computed on its own
        assert torch.equal(value, own["b"]["model"][name])
    assert not torch.equal(own["a"]["model"]["0.weight"], task.model.initial(node.state["seed"])["0.weight"])


def federation_by_hand(
    method: FedMeZO, task: Task, rounds: int, clients: Mapping[str, FedMeZOClient] | None = None
) -> tuple[dict[tuple[int, str], Packet], dict[str, Any], Node]:
    """The packets of each round and device, the devices' states and the node after some rounds of devices a and b.

    Every device has tensors of its own and replays for itself, as on machines of their own.
    """
    node = Node("server", method.server, task, ("a", "b"), rounds)
    own: dict[str, Any] = {"a": {}, "b": {}}
    packets = {}
    node.start()
    while not node.done:
        for command in node.advance():
            if not hasattr(command, "packet"):
                continue
            down = Packet({name: value.clone() for name, value in command.packet.tensors.items()})
            packets[command.id.round, command.child] = down
            client = (clients or {}).get(command.child, method.client)
            replica._LATEST.clear()
            up, kept = client.local(task, down, FLOAT32[command.child], own[command.child], Context(0, *command.id))
            own[command.child] = kept
            node.receive(Answer(command.id, up))
    return packets, own, node


def test_a_device_that_changes_its_model_in_place_has_the_same_bits() -> None:
    method, task = FedMeZO(directions=3), Task(Model(small_model), 3, sampler=JoiningSampler(True))
    in_place = method.client.on_device()
    assert isinstance(in_place, FedMeZOClient) and in_place.in_place
    _, own, node = federation_by_hand(method, task, 18, {"b": in_place})
    down = Packet(
        {"round": RoundOf(node.state["seed"], 18).write(node.state["slopes"]), "slopes": node.state["slopes"]}
    )
    found = method.client._catch_up(task, down, own["a"])
    for name, value in in_place._catch_up(task, down, own["b"]).items():
        assert torch.equal(value, found[name])
        assert torch.equal(value, node.state["model"][name])


def test_devices_with_equal_models_share_the_model_after_a_replay() -> None:
    method, task = FedMeZO(), Task(Model(small_model), 3)
    slopes = torch.tensor([[0.5, -0.25]])
    down = Packet({"round": torch.tensor([1, 1]), "slopes": replica.as_bits(slopes)})
    first, second, other = task.model.initial(1), task.model.initial(1), task.model.initial(2)
    found = [method.client._catch_up(task, down, {"model": model, "round": 0}) for model in (first, second, other)]
    assert all(found[1][name] is value and found[2][name] is not value for name, value in found[0].items())
    third, fourth = (method.client._catch_up(task, down, {}) for _ in range(2))  # from the seed, which is 1
    assert all(third[name] is value and fourth[name] is value for name, value in found[0].items())
    alone = method.client.on_device()._catch_up(task, down, {"model": task.model.initial(2), "round": 0})
    assert all(torch.equal(found[2][name], value) for name, value in alone.items())


def test_the_round_of_a_node_is_a_mean_and_may_be_rounded() -> None:
    """The mean of 3, 3 and 3 with weights that have no exact quotient; the node needs no slope of round 3 again."""
    server, slopes = FedMeZO().server, torch.zeros(5, 2, dtype=torch.int32)
    state = {"seed": 1, "model": {}, "round": 5, "first": 0, "slopes": slopes}
    view = View(("edge",), nodes=frozenset({"edge"}), heard={"edge": {"round": 3 - 4e-16}})
    assert len(server.plan(tiny.TASK, state, view, Context(0, "root", 5)).packets["edge"].tensors["slopes"]) == 2


def test_a_device_that_lacks_rounds_is_told_so() -> None:
    task = Task(Model(small_model), 3)
    slopes = torch.zeros(2, 2, dtype=torch.int32)
    down = Packet({"round": torch.tensor([1, 9]), "slopes": slopes})
    own = {"model": task.model.initial(1), "round": 3}
    with pytest.raises(RunError, match="its model is that of round 4, and it received the slopes from 8 on"):
        FedMeZO().client.local(task, down, FLOAT32["a"], own, Context(0, "a", 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_perturbing_and_returning_changes_weights_by_rounding_only(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    scales = torch.logspace(-6, 1, 40_000, dtype=torch.float64)
    weights = {
        "w": (torch.randn(40_000, generator=generator) * scales).to(dtype),
        "b": torch.zeros(30_001, dtype=dtype),
    }
    changed = {name: value.clone() for name, value in weights.items()}
    for scale in FedMeZO().walk:
        shift(changed, torch.tensor(5), [scale])
    unit = torch.finfo(dtype).eps / 2
    for place, (name, value) in enumerate(weights.items()):
        z = normals(derive(torch.tensor(5), place), 0, len(value)).double()
        bound = 3 * unit * (value.double().abs() + EPSILON * z.abs()) * (1 + 1e-6)
        assert ((changed[name].double() - value.double()).abs() <= bound).all()
    assert torch.equal(changed["b"], weights["b"])  # zeros return exactly


def test_frozen_parameters_stay_and_are_not_perturbed() -> None:
    def build() -> nn.Module:
        module = small_model()
        module[0].requires_grad_(False)
        return module

    task = Task(Model(build), 3, sampler=JoiningSampler(True))
    _, own, _ = federation_by_hand(FedMeZO(), task, 2)
    assert set(own["a"]["model"]) == {"2.weight", "2.bias"}


@pytest.mark.parametrize("upload", [{}, {"slopes": torch.zeros(3)}])
def test_an_upload_without_a_slope_for_each_direction_is_refused(upload: dict[str, Tensor]) -> None:
    problem = FedMeZO().server.check(tiny.TASK, Packet(upload))
    assert problem is not None and "a slope for each of 2 directions is needed" in problem


def test_the_vector_engine_computes_all_devices_with_one_perturbed_model(tmp_path: Path) -> None:
    settings = DIGITS | {"rounds": 2, "clients": 6, "partition": "quantity:1", "batch": 16, "out": str(tmp_path)}
    result = ug.run("fedmezo", **settings | {"engine": "vector"})
    assert result.history[-1]["stacked"] + result.history[-1]["not_stacked"] == 6
    assert result.history[-1]["not_stacked"] == 0


@pytest.mark.slow
def test_fedmezo_learns_and_beats_distmezo(tmp_path: Path) -> None:
    """The step sizes were chosen with the seeds 11 and 12."""
    settings = {"clients": 5, "partition": "dirichlet:0.1", "rounds": 300, "engine": "vector", "out": str(tmp_path)}
    common = {"model": "logistic", "batch": 512, "progress": False, "evaluate_every": 300, "checkpoint_every": 300}
    shared, alone = (
        ug.run(method, options={"step_size": 0.03}, seed=3, **settings, **common) for method in ("fedmezo", "distmezo")
    )
    assert shared.accuracy > 0.75
    assert shared.accuracy > alone.accuracy

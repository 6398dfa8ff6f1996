"""REFT, FedKD, FL-PQSU and PruneFL against plain loops of their formulas (Desai 2023, chapters 4 to 6)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.methods import tiny_federation as tiny
from undergrowth.core import Context, Packet, RunWarning, Shard, View
from undergrowth.core.names import SAMPLES
from undergrowth.core.samplers import NoKnowledge
from undergrowth.core.server import InnerServer
from undergrowth.methods import FLPQSU, REFT, FedKD, PruneFL
from undergrowth.models.staged import Staged

HALF = 2e-9  # F_λ in GFLOPs for devices of one FLOP a second, as in the tiny federation: P = 0.5
SERVER = {"server_lr": 0.02, "server_epochs": 3, "server_batch": 5}
assert tiny.TASK.public is not None
PUBLIC: Shard = tiny.TASK.public
# The linear layers whose outputs are pruned, with what else has their channels, and the layers that read them.
LAYERS = {"lower.0": (["lower.1"], "lower.3"), "lower.3": (["upper.0"], "upper.2"), "upper.2": ([], "head")}


def strongest(weights: tiny.Weights) -> dict[str, Tensor]:
    """Of each layer the half of the outputs whose rows have the largest sums of absolute values."""
    norms = {layer: weights[f"{layer}.weight"].abs().sum(1) for layer in LAYERS}
    return {layer: each.argsort(descending=True)[: -(-len(each) // 2)].sort().values for layer, each in norms.items()}


def smaller(weights: tiny.Weights, kept: dict[str, Tensor]) -> Any:
    """A module with three smaller layers, and the kept rows and columns of the weights."""
    a, b, c = (len(kept[layer]) for layer in LAYERS)
    lower = nn.Sequential(nn.Linear(4, a), nn.BatchNorm1d(a), nn.ReLU(), nn.Linear(a, b))
    upper = nn.Sequential(nn.BatchNorm1d(b), nn.ReLU(), nn.Linear(b, c), nn.Tanh())
    module = Staged({"lower": lower, "upper": upper, "head": nn.Linear(c, 3)}, {"head": "head"}).double()
    sliced = dict(weights)
    for layer, (norms, reader) in LAYERS.items():
        for name in (f"{layer}.weight", f"{layer}.bias", *(key for key in sliced if key.rpartition(".")[0] in norms)):
            sliced[name] = sliced[name][kept[layer]] if sliced[name].dim() else sliced[name]
        sliced[f"{reader}.weight"] = sliced[f"{reader}.weight"][:, kept[layer]]
    module.load_state_dict(sliced)
    return module.train()


def logits_of(module: nn.Module) -> Tensor:
    with torch.no_grad():
        return module.eval()(PUBLIC.x)


def one_byte(logits: Tensor) -> Tensor:
    """Each column rounded to whole multiples of a 127th of its largest magnitude."""
    step = logits.abs().amax(0) / 127
    return (logits / step).round() * step


def distilled(teacher: Tensor, held: list[int], distill: str, temperature: float) -> dict[str, Tensor]:
    student = tiny.module_with(tiny.initial())

    def loss(module: nn.Module, rows: Tensor) -> Tensor:
        z, t = module(PUBLIC.x[rows])[:, held], teacher[rows][:, held]
        if distill == "l2":
            return (z - t).square().sum(1).sqrt().mean()
        p, q = (t / temperature).softmax(1), (z / temperature).softmax(1)
        return (p * (p / q).log()).sum(1).mean()

    orders = tiny.shuffles(tiny.server_context(0), len(PUBLIC), SERVER["server_epochs"])
    adam = torch.optim.Adam(student.parameters(), SERVER["server_lr"])
    tiny.descend(student, orders, loss, adam, batch=5)
    return tiny.weights_of(student)


def assert_distilled(found: tiny.Weights, expected: tiny.Weights) -> None:
    # A bias before BatchNorm has a gradient of 0 up to rounding, and Adam divides that by 1e-8.
    torch.testing.assert_close(dict(found), dict(expected), rtol=1e-9, atol=1e-8)


def teacher_of(modules: dict[str, Any], quantised: bool) -> tuple[Tensor, list[int]]:
    """z^t = Σ_k N_k^t·z_k^t / Σ_k N_k^t for every class that a device has."""
    teacher, held = torch.zeros(len(PUBLIC), 3, dtype=torch.float64), []
    logits = {device: logits_of(module) for device, module in modules.items()}
    logits = {device: one_byte(each) if quantised else each for device, each in logits.items()}
    for label in range(3):
        counts = {device: int((tiny.SHARDS[device].y == label).sum()) for device in modules}
        if sum(counts.values()):
            held.append(label)
            teacher[:, label] = sum(counts[d] / sum(counts.values()) * logits[d][:, label] for d in modules)
    return teacher, held


def trained(build: Any) -> dict[str, Any]:
    modules = {}
    for device, shard in tiny.SHARDS.items():
        modules[device] = build()
        tiny.descend(
            modules[device], tiny.shuffles(tiny.device_context(device, 0), len(shard)), tiny.cross_entropy(shard)
        )
    return modules


@pytest.mark.parametrize(("distill", "temperature"), [("l2", 1.0), ("kl", 1.0), ("kl", 3.0)])
@pytest.mark.parametrize("logits", ["float32", "int8"])
def test_reft(distill: str, temperature: float, logits: str) -> None:
    """Devices train half of the channels; device c has no samples of class 2 and no say in it."""
    assert 2 not in tiny.SHARDS["c"].y and 2 in tiny.SHARDS["a"].y
    start = tiny.initial()
    modules = trained(lambda: smaller(start, strongest(start)))
    teacher, held = teacher_of(modules, logits == "int8")
    method = REFT(f_lambda=HALF, distill=distill, temperature=temperature, logits=logits, **SERVER)
    state, own = tiny.simulate(method, 1)
    for device, module in modules.items():
        tiny.assert_same(own[device]["weights"], tiny.weights_of(module))
    assert_distilled(state["model"], distilled(teacher, held, distill, temperature))


def test_fedkd() -> None:
    teacher, held = teacher_of(trained(lambda: tiny.module_with(tiny.initial())), quantised=True)
    state, _ = tiny.simulate(FedKD(**SERVER), 1)
    assert_distilled(state["model"], distilled(teacher, held, "l2", 1.0))


@pytest.mark.parametrize("distill", ["l2", "kl"])
def test_a_class_that_no_device_has_is_left_out_with_a_warning(distill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for device, shard in list(tiny.SHARDS.items()):
        monkeypatch.setitem(tiny.SHARDS, device, replace(shard, y=shard.y.clamp_max(1)))
    teacher, held = teacher_of(trained(lambda: tiny.module_with(tiny.initial())), quantised=False)
    assert held == [0, 1]
    with pytest.warns(RunWarning, match="no device trained on samples of class 2: not distilled"):
        state, _ = tiny.simulate(FedKD(distill=distill, logits="float32", **SERVER), 1)
    assert_distilled(state["model"], distilled(teacher, held, distill, 1.0))


def test_class_weights_sum_to_one_for_every_class_that_a_device_has() -> None:
    """The teacher of devices that all send the number 7 is 7; a class that nobody has keeps no weight."""
    generator, reducer = torch.Generator().manual_seed(2), REFT().server.reducer
    counts = torch.randint(0, 40, (5, 4), generator=generator) * torch.tensor([1, 1, 1, 0])
    counts[:4, 1] = 0  # one device has all samples of this class
    sevens = torch.full((6, 4), 7.0, dtype=torch.float64)
    ups = [Packet({"logits": sevens, "counts": each.float()}, {SAMPLES: 1.0}) for each in counts]
    found = reduce(reducer.merge, [reducer.lift(str(place), up, 0) for place, up in enumerate(ups)]).tensors
    torch.testing.assert_close(found["logits"][:, :3], sevens[:, :3], rtol=1e-12, atol=0)
    assert not found["logits"][:, 3].any() and torch.equal(found["counts"], counts.sum(0).double())


class Speeds(NoKnowledge):
    def speed(self, device: str) -> float:
        return float(device) * 1e9


@pytest.mark.parametrize(
    ("f_lambda", "removed"), [(100, [0.9, 0.8, 0.6, 0.4, 0.0]), (50, [0.8, 0.6, 0.2, 0.0, 0.0])], ids=["100", "50"]
)
def test_the_server_prunes_by_the_speed_of_each_device(f_lambda: float, removed: list[float]) -> None:
    method = REFT(f_lambda=f_lambda)
    assert [method.pruned(speed * 1e9) for speed in (10, 20, 40, 60, 100)] == removed
    state = {"model": tiny.initial()}
    view = View(("10", "20", "40", "60", "100"), knowledge=Speeds())
    packets = method.server.plan(tiny.TASK, state, view, Context(0, "root", 0)).packets
    for device, fraction in zip(view.idle, removed, strict=True):
        rows = [len(packets[device].tensors[f"{layer}.weight"]) for layer in LAYERS]
        assert rows == [max(1, -int(-round((1 - fraction) * count, 9) // 1)) for count in (6, 5, 6)]
    assert all(packets["100"].tensors[name] is value for name, value in state["model"].items())


def test_fl_pqsu() -> None:
    """Two rounds with half of the channels; a device whose update is small keeps it."""
    start = tiny.initial()
    kept = strongest(start)
    model, threshold, sent = tiny.weights_of(smaller(start, kept)), 0.085, []
    for number in range(2):
        changes, sizes = [], []
        for device, shard in tiny.SHARDS.items():
            module = smaller(start, kept)
            module.load_state_dict(model)
            tiny.descend(
                module, tiny.shuffles(tiny.device_context(device, number), len(shard)), tiny.cross_entropy(shard)
            )
            names = [name for name, _ in module.named_parameters()]
            change = {name: value - model[name] for name, value in tiny.weights_of(module).items()}
            moved, before = (sum(each[name].square().sum() for name in names).sqrt() for each in (change, model))
            sent.append(bool(moved >= threshold * before))
            if not sent[-1]:
                continue
            for name, value in change.items():
                if value.is_floating_point():
                    step = value.abs().max() / 127
                    change[name] = (value / step).round() * step if step else value
            changes.append(change)
            sizes.append(len(shard))
        average = tiny.mean(changes, sizes)
        model = {name: value + average[name] for name, value in model.items()}
    assert any(sent) and not all(sent), "some devices skip their upload"
    state, _ = tiny.simulate(FLPQSU(ratio=0.5, threshold=threshold), 2)
    whole = state["model"]
    found = smaller(whole, kept)
    tiny.assert_same(tiny.weights_of(found), model)
    for layer, rows in kept.items():  # what was removed is zero
        removed = torch.ones(len(whole[f"{layer}.weight"]), dtype=torch.bool).index_fill(0, rows, False)
        assert not whole[f"{layer}.weight"][removed].any() and not whole[f"{layer}.bias"][removed].any()
    torch.testing.assert_close(logits_of(tiny.module_with(whole)), logits_of(found))  # and has no effect


def prunefl(rounds: int, ratio: float, every: int, overhead: float) -> tuple[tiny.Weights, dict[str, Tensor]]:
    model, names = tiny.initial(), [*(f"{layer}.weight" for layer in LAYERS), "head.weight"]
    mask = {name: torch.ones_like(model[name]) for name in names}
    for number in range(rounds):
        devices = ["a"] if number == 0 else list(tiny.SHARDS)
        models, gradients, sizes = [], [], []
        for device in devices:
            shard, module = tiny.SHARDS[device], tiny.module_with(model)
            turn = number if device == "a" else number - 1
            probe, gradient = tiny.module_with(model), {name: torch.zeros_like(model[name]) for name in names}
            for rows in torch.arange(len(shard)).split(tiny.BATCH):
                probe.zero_grad()
                tiny.cross_entropy(shard)(probe, rows).backward()
                for name in names:
                    gradient[name] += probe.get_parameter(name).grad * len(rows) / len(shard)
                probe = tiny.module_with(model)
            for name in names:  # removed weights have no gradient
                module.get_parameter(name).register_hook(lambda g, left=mask[name]: g * left)
            orders = tiny.shuffles(tiny.device_context(device, number, turn), len(shard))
            tiny.descend(module, orders, tiny.cross_entropy(shard))
            models.append(tiny.weights_of(module))
            gradients.append(gradient)
            sizes.append(len(shard))
        model = tiny.mean(models, sizes)
        if number % every:
            continue
        g = tiny.mean(gradients, sizes)
        # One entry for each weight: |w|, g², t = 1 in a linear layer, tensor and place.
        entries = [
            (float(model[name].flatten()[i].abs()), float(g[name].flatten()[i] ** 2), name, i)
            for name in names
            for i in range(model[name].numel())
        ]
        entries.sort(key=lambda entry: -entry[0])
        count = len(entries) - int(ratio * len(entries))
        chosen, others = entries[:count], sorted(entries[count:], key=lambda entry: -entry[1])
        for entry in others:
            if entry[1] < sum(each[1] for each in chosen) / (overhead * len(entries) + len(chosen)):
                break
            chosen.append(entry)
        mask = {name: torch.zeros_like(model[name]) for name in names}
        for _, _, name, i in chosen:
            mask[name].view(-1)[i] = 1
        model = {name: value * mask[name] if name in mask else value for name, value in model.items()}
    return model, mask


class FewSamples(NoKnowledge):
    def samples(self, device: str) -> int:
        return int(device)

    def speed(self, device: str) -> float:
        return {"1": 9.0, "2": 5.0, "3": 7.0}[device]


def test_the_initial_pruning_is_on_the_fastest_device_that_can_train() -> None:
    """BatchNorm cannot train on a single sample; the same device would be asked again in every round."""
    server, context = PruneFL().server, tiny.server_context(0)
    task = replace(tiny.TASK, model=tiny.TASK.model.with_not_alone(frozenset({None})))
    plan = server.plan(task, server.init(task, context), View(("1", "2", "3"), knowledge=FewSamples()), context)
    assert list(plan.packets) == ["3"]


class TooSmall(FewSamples):
    def seconds(self, device: str, down: Packet) -> float:
        return math.inf if device == "3" else 1.0


def test_the_initial_pruning_is_on_a_device_that_can_hold_the_model() -> None:
    server, context = PruneFL().server, tiny.server_context(0)
    state, view = server.init(tiny.TASK, context), View(("1", "2", "3"), knowledge=TooSmall())
    asked = [list(server.plan(tiny.TASK, state, view, context._replace(round=at)).packets) for at in range(4)]
    assert asked == [["1"], ["2"], ["3"], ["1"]], "the next one if nobody answers"


def test_the_initial_pruning_of_a_tree_tries_every_device_in_turn() -> None:
    """Three edge servers with two devices each: six rounds without an answer ask each device once."""
    server, context = PruneFL().server, tiny.server_context(0)
    state, asked = server.init(tiny.TASK, context), []
    for at in range(6):
        now = context._replace(round=at)
        edges = ("a", "b", "c")
        ((edge, packet),) = server.plan(tiny.TASK, state, View(edges, nodes=frozenset(edges)), now).packets.items()
        below = InnerServer(server)
        adopted = below.adopt(tiny.TASK, {}, packet, now)
        ((device, sent),) = below.plan(tiny.TASK, adopted, View(("1", "2")), now).packets.items()
        asked.append(edge + device)
        assert not sent.scalars and sent.tensors.keys() == state["model"].keys()
    assert asked == ["a1", "b1", "c1", "a2", "b2", "c2"]


@pytest.mark.parametrize(("ratio", "overhead"), [(0.9, 0.0), (0.5, 0.3)])
def test_prunefl(ratio: float, overhead: float) -> None:
    """Round 1 on one device, new masks after rounds 1 and 3."""
    model, mask = prunefl(4, ratio, 2, overhead)
    left = sum(float(each.sum()) for each in mask.values()) / sum(each.numel() for each in mask.values())
    assert 1 - ratio < left < 1
    state, _ = tiny.simulate(PruneFL(ratio=ratio, every=2, overhead=overhead), 4)
    tiny.assert_same({name: value.double() for name, value in state["masks"].items()}, mask)
    tiny.assert_same(state["model"], model)

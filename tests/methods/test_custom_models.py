"""FedMD, FedAT and FedKAD: special cases, messages, models of devices, costs and refused settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undergrowth as ug
from tests.methods.test_fedft import digits, digits_task
from tests.methods.test_methods import play
from undergrowth.core import Context, InputError, Model, Packet, Shard, Task
from undergrowth.exchange.codecs import build_codec
from undergrowth.learning import logits_of
from undergrowth.learning.distillation import draw_public, draw_seed
from undergrowth.methods import FedAT, FedKAD, FedMD
from undergrowth.methods.fedkad import prototypes_of
from undergrowth.models import builder
from undergrowth.runs.execution import start

THREE = pytest.mark.parametrize("method", ["fedmd", "fedat", "fedkad"])
LADDER = [{"name": "cnn", "hidden": 4}, {"name": "cnn", "hidden": 16}]
CNN = {"name": "cnn", "hidden": 8, "ladder": LADDER}
# Short training, in small steps where that keeps the methods apart from rounding.
QUICK: dict[str, dict[str, Any]] = {
    "fedmd": {"pretrain_epochs": 2, "server_lr": 0.02, "server_epochs": 1},
    "fedkad": {"pretrain_epochs": 2, "server_lr": 0.02, "server_epochs": 1},
    "fedat": {"beta": 0.1, "transfer_lr": 0.02, "metadata_lr": 0.02, "transfer_epochs": 1, "metadata_epochs": 1},
}


def tree(method: str, out: Path, **sections: Any) -> dict[str, Any]:
    return {
        "method": {"name": method, **QUICK[method], **sections.pop("options", {})},
        "public": 0.05,
        "model": sections.pop("model", CNN),
        "data": {"clients": 6, "partition": "dirichlet:1", "train_samples": 400, **sections.pop("data", {})},
        "train": {"rounds": 2, "lr": 0.05, "batch": 64, **sections.pop("train", {})},
        "run": {"out": str(out)},
        **sections,
    }


def weights(hidden: int) -> int:
    """Returns the bytes of the weights of a cnn."""
    return Packet(Model(builder("cnn", (1, 8, 8), 10, hidden=hidden)).initial(0)).nbytes


def shards(*sizes: int) -> dict[str, Shard]:
    return {name: digits(size, 100 * place) for place, (name, size) in enumerate(zip("abcdef", sizes, strict=False))}


def public_task(**changes: Any) -> Task:
    return replace(digits_task("cnn", lr=0.05), public=digits(40, 900), **changes)


def trained(
    module: nn.Module, public: Shard, context: Context, epochs: int, batch: int, lr: float
) -> dict[str, Tensor]:
    """Returns the weights after ordinary training on the public data."""
    optimiser, generator = torch.optim.SGD(module.parameters(), lr), context.generator("order")
    for _ in range(epochs):
        for rows in torch.randperm(len(public), generator=generator).split(batch):
            optimiser.zero_grad()
            F.cross_entropy(module(public.x[rows]), public.y[rows]).backward()
            optimiser.step()
    return dict(module.state_dict())


def test_fedat_without_attention_and_metadata_trains_on_the_public_data_only() -> None:
    task = replace(digits_task("mlp"), public=digits(40, 900))
    method = FedAT(beta=0.0, metadata_share=0.0, transfer_lr=0.05, server_batch=16)
    state, _ = play(method, task, shards(20, 31), rounds=2)
    module = task.model.build()
    module.load_state_dict(task.model.initial(Context(9, "root", 0).key("model")))
    for number in range(2):
        expected = trained(module, task.public, Context(9, "root", number), 2, 16, 0.05)
    assert all(torch.equal(state["model"][name], value) for name, value in expected.items())
    assert set(state["devices"]) == {"a", "b"}


def test_the_consensus_of_fedmd_is_the_mean_of_the_logits_and_devices_keep_their_models() -> None:
    task = public_task(ladder={"small": digits_task("mlp").model, "cnn": digits_task("cnn").model})
    method = FedMD(samples=25, server_epochs=1, pretrain_epochs=0)
    state, own = play(method, task, shards(20, 31, 18), rounds=2)
    assert [kept["model"] for kept in own.values()] == ["small", "cnn", "small"]
    some = task.public.take(draw_public(task.public, 25, draw_seed(Context(9, "root", 1))))
    says = [
        logits_of(replace(task, model=task.ladder[kept["model"]]), kept["weights"], some.x) for kept in own.values()
    ]
    torch.testing.assert_close(state["known"].tensors["consensus"], sum(says) / 3)
    models = method.models(task, state, own)
    assert list(models) == ["global", "devices/a", "devices/b", "devices/c"]
    assert models["devices/a"].model is task.ladder["small"]  # type: ignore[union-attr]


def test_fedmd_trains_on_the_consensus_before_its_own_samples() -> None:
    task, shard = public_task(), digits(20)
    client = FedMD(samples=30, digest_epochs=2).client
    numbers = {"seed": 1.0, "draw": 2.0, "digested": 3.0}
    down = Packet({"consensus": torch.randn(30, 10)}, numbers, {"model": ""})
    _, steps = client.begin(task, down, shard, {}, Context(0, "a", 0))
    kinds = [batch["public"].float().mean().item() for batch in steps]
    assert kinds == [1.0] * 4 + [0.0] * 2, "two epochs of 30 and one of 20, in batches of 16"
    public = task.public.take(draw_public(task.public, 30, 3.0))
    assert torch.equal(steps.data["x"][:30], public.x) and torch.equal(
        steps.data["teacher"][:30], down.tensors["consensus"]
    )
    up, kept = client.local(task, down, shard, {}, Context(0, "a", 0))
    expected = logits_of(task, kept["weights"], task.public.take(draw_public(task.public, 30, 2.0)).x)
    assert list(up.tensors) == ["logits"]
    torch.testing.assert_close(up.tensors["logits"], expected, rtol=1e-4, atol=1e-4)


def test_prototypes_take_less_than_a_hundredth_of_the_bytes_of_feature_maps(tmp_path: Path) -> None:
    """Table 5.10 of the source: 99.6 % less on CIFAR-10. Here one device has all samples of ten classes."""
    data = {"clients": 1, "partition": "iid", "train_samples": 1300}
    settings = {"public": {"samples": 40}, "data": data, "train": {"rounds": 1}}
    extra = {}
    for method, options in (("fedat", {"level": "up"}), ("fedkad", {"pretrain_epochs": 0})):
        result = start(tree(method, tmp_path, options=options, model={"name": "cnn", "hidden": 8}, **settings))
        ((row,), (device,)) = result.ledger.rows(), result.clients
        extra[method] = row.bytes_up - weights(8) - 2 * 8  # samples and rung
    maps, samples = 64 * 2 * 2 * 4, device["samples"]
    assert extra == {"fedat": samples * (maps + 8), "fedkad": 10 * maps + 10 * 4}
    assert extra["fedkad"] < 0.01 * extra["fedat"]


def test_a_lossy_link_keeps_the_classes_of_a_device() -> None:
    """One sample of a class beside 400 of another: as a number of eight bits, its count would be zero."""
    task, shard = public_task(), Shard(torch.rand(401, 1, 8, 8), torch.tensor([3] + [5] * 400))
    _, counts = prototypes_of(task, task.model.initial(0), shard, "up")
    codec = build_codec("links.up", "int8")
    up = codec.decode(codec.encode(Packet({"counts": counts})))
    assert up.tensors["counts"].tolist() == [0, 0, 0, 1, 0, 400, 0, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedat", "fedkad"])
def test_a_tree_gives_what_a_star_gives(method: str, tmp_path: Path) -> None:
    same = {"model": {"name": "cnn", "hidden": 8}}
    star, deep = (start(tree(method, tmp_path, topology=shape, **same)) for shape in ("star", "tree:2x1x3"))
    torch.testing.assert_close(dict(deep.model.state_dict()), dict(star.model.state_dict()), rtol=1e-3, atol=1e-4)
    assert deep.history[-1]["accuracy/devices"] == pytest.approx(star.history[-1]["accuracy/devices"], abs=0.01)


def test_an_edge_server_receives_the_models_of_its_own_devices_only(tmp_path: Path) -> None:
    result = start(tree("fedkad", tmp_path, topology="tree:2x3", train={"rounds": 3}))
    rows = [(row.round, row.child, row.bytes_down) for row in result.ledger.rows()]
    first, second = weights(4), weights(16)
    below = 2 * first + second + 3 * 8  # dealt in turn among the three: small, large, small
    numbers = 2 * 8  # the seed of fresh models, and the epochs of the first round
    edges = {
        number: [size for at, child, size in rows if at == number and child.startswith("edge")] for number in (1, 2, 3)
    }
    assert edges == {1: [numbers] * 2, 2: [below + numbers] * 2, 3: [below + numbers] * 2}


@THREE
def test_a_device_has_the_same_model_in_all_rounds(method: str, tmp_path: Path) -> None:
    fleet = {"name": "mixed-edge", "dropout": 0.3}
    result = start(tree(method, tmp_path, fleet=fleet, train={"rounds": 6, "sample": 0.6}, data={"clients": 5}))
    flops: dict[str, set[float]] = {}
    for row in result.ledger.rows():
        if row.round > 2 and row.outcome == "arrived":
            flops.setdefault(row.child, set()).add(row.flops)
    assert len(flops) > 2 and all(len(each) <= 1 + (method == "fedmd") for each in flops.values())
    assert len({min(each) for each in flops.values()}) > 1


@THREE
def test_the_global_model_and_the_models_of_devices_are_evaluated(method: str, tmp_path: Path) -> None:
    result = start(tree(method, tmp_path))
    last = result.history[-1]
    assert 0 <= last["accuracy/devices"] <= 1 and result.accuracy == last["accuracy"]
    assert [key for key in last if key.startswith("accuracy")] == ["accuracy", "accuracy/devices"]
    assert all(row["accuracy"] is not None for row in result.clients)
    assert result.model.head.weight.shape == (10, 8), "the global model is saved"


@pytest.mark.parametrize("method", ["fedmd", "fedkad"])
def test_pretraining_is_booked_and_not_limited_by_the_deadline(method: str, tmp_path: Path) -> None:
    options = {"pretrain_epochs": 6, "samples": 1}
    settings = {"model": {"name": "cnn", "hidden": 8}, "data": {"clients": 3}, "options": options}
    rows = {(row.round, row.child): row for row in start(tree(method, tmp_path, **settings)).ledger.rows()}
    first, second = rows[1, "device-000"], rows[2, "device-000"]
    # Forward and backward are three passes; making prototypes is one more, in every round.
    assert first.flops / second.flops == pytest.approx(6 if method == "fedmd" else (6 * 3 + 1) / (3 + 1), rel=0.1)
    fleet = {"name": "uniform", "deadline": 1.01 * max(row.end - row.start for row in rows.values() if row.round == 2)}
    assert first.end - first.start > fleet["deadline"]
    assert [row["arrived"] for row in start(tree(method, tmp_path, fleet=fleet, **settings)).history] == [3, 3]


@pytest.mark.parametrize("method", ["fedmd", "fedkad"])
def test_a_plan_prices_a_round_after_pretraining(method: str) -> None:
    settings = {"public": 0.05, "model": "cnn", "model_options": {"hidden": 8}, "clients": 4, "fleet": "mixed-edge"}
    rows = [ug.plan(method, options={"pretrain_epochs": epochs}, **settings) for epochs in (0, 50)]
    assert rows[0] == rows[1] and rows[0]


def test_a_ladder_may_consist_of_own_models(tmp_path: Path) -> None:
    def net(units: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 10))

    def whole() -> nn.Module:
        return net(8)

    whole.ladder = {"narrow": lambda: net(2), "wide": lambda: net(16)}  # type: ignore[attr-defined]
    result = ug.run(FedMD(pretrain_epochs=1), public=0.05, model=whole, clients=4, rounds=2, out=str(tmp_path))
    assert len({row.flops for row in result.ledger.rows() if row.round == 1}) > 1
    with pytest.raises(InputError, match=r"model\.ladder 'narrow': its maps at level 'head' are 2 and those"):
        ug.run(FedKAD(level="head"), public=0.05, model=whole, clients=4, rounds=2, out=str(tmp_path))


ODD = {"name": "cnn", "ladder": ["mlp"]}
REFUSED = {
    "no data": ("fedmd fedat fedkad", {"public": {}}, "needs data that the server holds; add public: 0.1"),
    "no such level": ("fedat fedkad", {"options": {"level": "lo"}}, "'lo' is not a level of this model; did you mean"),
    "no such form": ("fedat", {"options": {"form": "mean"}}, "method.form 'mean' is not known; did you mean"),
    "unlike models": ("fedat fedkad", {"model": ODD}, "model.ladder 'mlp': its maps at level"),
    "no such model": ("fedmd", {"model": {"ladder": ["cmn"]}}, "model.ladder: model: unknown name 'cmn'"),
    "one model twice": ("fedmd", {"model": {"ladder": ["cnn", "cnn"]}}, "model.ladder: 'cnn' is in it twice"),
}


@pytest.mark.parametrize(("methods", "sections", "words"), REFUSED.values(), ids=REFUSED)
def test_settings_that_cannot_work_are_refused_before_anything_starts(methods, sections, words, tmp_path: Path) -> None:
    for method in methods.split():
        with pytest.raises(InputError) as caught:
            start(tree(method, tmp_path / "runs", **sections))
        assert words in str(caught.value) and not (tmp_path / "runs").exists()


def test_fedat_refuses_public_data_without_labels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"public\.labelled false: fedat learns from the labels"):
        start(tree("fedat", tmp_path, public={"share": 0.1, "labelled": False}))

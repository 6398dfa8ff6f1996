"""LoRA and SLoRA: reference loops, what is sent, other methods on adapters, the frozen model in a stack, bad input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

import undergrowth as ug
from tests.double_precision import ATOL, RTOL
from tests.methods import tiny_federation as tiny
from undergrowth.core import InputError, Model
from undergrowth.data import Dataset
from undergrowth.learning.adapters import Adapters, WithAdapters, add_adapters
from undergrowth.methods import LoRA, SLoRA
from undergrowth.methods.slora.sparse_adapters import low_rank, sparse_model
from undergrowth.models import builder, check_tensors

LAYERS = ("lower.0", "lower.3", "upper.2")
RANK, ALPHA = 2, 3.0
ADAPTED = replace(tiny.TASK, model=Model(WithAdapters(tiny.build, Adapters(RANK, ALPHA, LAYERS))))
BASE = deepcopy(tiny.TASK.model.module).eval()  # what is frozen has the same values wherever a model is built


# Plain loops -------------------------------------------------------------------------------------------------


def train_changes(
    changes: Callable[[tiny.Weights], Mapping[str, Tensor]], start: tiny.Weights, rounds: range
) -> tiny.Weights:
    """FedAvg of what `start` holds. `changes`: what that adds to the weights of the layers."""
    weights = dict(start)
    for number in rounds:
        trained = []
        for device, shard in tiny.SHARDS.items():
            own = {name: value.clone().requires_grad_() for name, value in weights.items()}
            optimiser = torch.optim.SGD(own.values(), tiny.LR, tiny.MOMENTUM)
            orders = tiny.shuffles(tiny.device_context(device, number), len(shard))
            for rows in (rows for order in orders for rows in order.split(tiny.TASK.train.batch)):
                optimiser.zero_grad()
                outputs = functional_call(BASE, merged(changes(own), own), (shard.x[rows],))
                functional.cross_entropy(outputs, shard.y[rows]).backward()
                optimiser.step()
            trained.append({name: value.detach() for name, value in own.items()})
        weights = tiny.mean(trained, tiny.SIZES)
    return weights


def merged(changes: Mapping[str, Tensor], weights: tiny.Weights) -> dict[str, Tensor]:
    """The plain model: changed layers, and the head in `weights`."""
    plain = {name: value.detach() for name, value in BASE.state_dict().items()}
    plain |= {f"{layer}.weight": plain[f"{layer}.weight"] + change for layer, change in changes.items()}
    return plain | {name: weights[name] for name in ("head.weight", "head.bias")}


def products(weights: tiny.Weights) -> dict[str, Tensor]:
    return {each: ALPHA / RANK * weights[f"{each}.lora_B"] @ weights[f"{each}.lora_A"] for each in LAYERS}


def assert_same_model(found: tiny.Weights, expected: tiny.Weights) -> None:
    """The same plain model. A and B themselves may differ by the sign of singular vectors."""
    torch.testing.assert_close(merged(products(found), found), merged(products(expected), expected))


def test_lora() -> None:
    start = tiny.initial(ADAPTED.model)
    assert set(start) == {f"{each}.lora_{part}" for each in LAYERS for part in "AB"} | {"head.weight", "head.bias"}
    expected = train_changes(products, start, range(2))
    found, own = tiny.simulate(LoRA(), 2, ADAPTED)
    torch.testing.assert_close(found["model"], expected)
    assert not any(own.values())


def test_slora() -> None:
    method, task = SLoRA(density=0.4, stage1_share=0.5), replace(ADAPTED, train=replace(tiny.TASK.train, rounds=4))
    generator = torch.Generator().manual_seed(tiny.seed_from(tiny.server_context(0), "mask"))
    masks = {}
    for layer in LAYERS:
        mask = torch.zeros_like(BASE.get_submodule(layer).weight)
        count = round(0.4 * mask.numel())
        mask.view(-1)[torch.randperm(mask.numel(), generator=generator)[:count]] = 1
        masks[layer] = mask

    def masked(weights: tiny.Weights) -> dict[str, Tensor]:
        return {layer: weights[layer] * mask for layer, mask in masks.items()}

    head = {name: value for name, value in tiny.initial(ADAPTED.model).items() if name.startswith("head")}
    tuned = train_changes(masked, {**{each: torch.zeros_like(masks[each]) for each in LAYERS}, **head}, range(2))
    start = {name: value for name, value in tuned.items() if name.startswith("head")}
    for layer, change in masked(tuned).items():
        left, singular, right = torch.linalg.svd(change, full_matrices=False)
        root = torch.diag((singular[:RANK] * RANK / ALPHA).sqrt())
        start |= {f"{layer}.lora_A": root @ right[:RANK], f"{layer}.lora_B": left[:, :RANK] @ root}
    assert_same_model(tiny.simulate(method, 2, task)[0]["model"], start)
    assert_same_model(tiny.simulate(method, 4, task)[0]["model"], train_changes(products, start, range(2, 4)))


def test_with_full_rank_stage_two_starts_from_the_model_of_stage_one() -> None:
    """The best approximation of every lower rank is that of the singular vectors; a higher one adds nothing."""
    x = tiny.SHARDS["b"].x
    for rank in (1, 6, 9):
        model = Model(WithAdapters(tiny.build, Adapters(rank, 5.0, LAYERS)))
        sparse = sparse_model(model, 0.5, seed=3)
        weights = {name: torch.randn_like(value) for name, value in sparse.initial(0).items()}
        second = low_rank(model, sparse, weights, model.initial(1))
        assert second.keys() == model.shapes.keys()
        assert torch.allclose(model(second, x), sparse(weights, x)) == (rank >= 5)
        assert all(value.count_nonzero() for name, value in second.items() if "lora_A" in name)


def test_adapters_beyond_the_rank_of_stage_one_can_still_learn() -> None:
    """With zeros in both A and B, neither would have a gradient."""
    model = Model(WithAdapters(tiny.build, Adapters(4, 5.0, LAYERS)))
    sparse = sparse_model(model, 0.5, seed=3)
    for learned in (0, 2):  # values that stage 1 changed, in different rows and columns
        weights = dict(sparse.initial(0))
        for layer in LAYERS:
            positions = dict(sparse.module.named_modules())[layer].positions.tolist()
            columns = BASE.get_submodule(layer).weight.shape[1]
            first = positions[0]
            other = next(p for p in positions if p // columns != first // columns and p % columns != first % columns)
            value = torch.zeros_like(weights[f"{layer}.sparse"])
            for place in (first, other)[:learned]:
                value[positions.index(place)] = 0.5 + place
            weights[f"{layer}.sparse"] = value
        second, initial = low_rank(model, sparse, weights, model.initial(1)), model.initial(1)
        for layer in LAYERS:
            assert torch.equal(second[f"{layer}.lora_A"][learned:], initial[f"{layer}.lora_A"][learned:])
            assert not second[f"{layer}.lora_B"][:, learned:].any()
        x = tiny.SHARDS["b"].x
        torch.testing.assert_close(model(second, x), sparse(weights, x))


# What is sent ------------------------------------------------------------------------------------------------


def digits(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"model": "mlp", "clients": 3, "partition": "iid", "out": str(tmp_path), "progress": False, **more}


def test_only_adapters_and_the_head_travel(tmp_path: Path) -> None:
    """mlp: one hidden layer, 64 → 200, and a head of 200 → 10. Each upload also has its number of samples."""
    head, matrix, number = 200 * 10 + 10, 64 * 200, 8
    whole = ug.run("fedavg", rounds=1, **digits(tmp_path))
    lora = ug.run("lora", rounds=1, options={"rank": 4}, **digits(tmp_path))
    assert lora.ledger.bytes_up == 3 * (4 * (4 * (64 + 200) + head) + number)
    assert lora.ledger.flops < whole.ledger.flops and lora.ledger.peak_device_bytes < whole.ledger.peak_device_bytes
    options = {"rank": 4, "stage1_share": 0.5, "density": 0.1}
    slora = ug.run("slora", rounds=2, options=options, **digits(tmp_path))
    first, second = (row["bytes_up"] for row in slora.history)
    assert first == 3 * (4 * (0.1 * matrix + head) + number)
    assert second - first == lora.ledger.bytes_up
    frozen = dict(builder("mlp", (1, 8, 8), 10)().named_parameters())  # of any seed: only the names
    assert frozen.keys() < dict(slora.model.named_parameters()).keys()


# Several devices at once -------------------------------------------------------------------------------------


def texts() -> Dataset:
    generator = np.random.default_rng(0)
    x, y = generator.integers(1, 30, (60, 7)), generator.integers(0, 3, 60)
    return Dataset("texts", x[:48], y[:48], x[48:], y[48:], classes=3)


def transformer() -> torch.nn.Module:
    return builder("transformer", (7,), 3, vocabulary=30, width=8, depth=2, heads=2)().double()


ON_ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {"options": {"rank": 2}},
    "slora": {"options": {"rank": 2, "stage1_share": 0.5}},
    "fedprox": {"model_options": {"lora": {"rank": 2}}, "topology": "tree:2x2"},
    "fedmezo": {"model_options": {"lora": {"rank": 2, "layers": "widen"}}},
}


@pytest.mark.parametrize("method", ON_ADAPTERS)
def test_a_stack_shares_the_frozen_model_and_gives_what_single_devices_give(method: str, tmp_path: Path) -> None:
    settings = {
        "model": transformer,
        "data": texts(),
        "clients": 4,
        "partition": "dirichlet:1",
        "rounds": 2,
        "batch": 8,
    }
    settings |= {"out": str(tmp_path), "progress": False, **ON_ADAPTERS[method]}
    serial, stacked = (ug.run(method, engine=engine, **settings) for engine in ("serial", "vector"))
    assert stacked.history[-1]["stacked"] == 4 and stacked.history[-1]["not_stacked"] == 0
    one, other = (safetensors.torch.load_file(run.folder / "model.safetensors") for run in (serial, stacked))
    assert any("lora_A" in name for name in one)
    torch.testing.assert_close(one, other, rtol=RTOL, atol=ATOL)


# Files, and what is refused ----------------------------------------------------------------------------------


def test_files_with_and_without_adapters_are_loaded() -> None:
    plain, adapted = tiny.build(), add_adapters(tiny.build(), Adapters(RANK))
    found = check_tensors(adapted, plain.state_dict(), "the file")
    adapted.load_state_dict(found)
    x = tiny.SHARDS["a"].x
    torch.testing.assert_close(adapted.eval()(x), plain.eval()(x))  # B is zero
    assert check_tensors(adapted, adapted.state_dict(), "the file").keys() == adapted.state_dict().keys()
    with pytest.raises(InputError, match=r"lower\.0\.weight .* is not in the file"):
        missing = {name: value for name, value in plain.state_dict().items() if name != "lower.0.weight"}
        check_tensors(adapted, missing, "the file")


def test_the_phase_before_the_first_round_trains_the_model_without_adapters(tmp_path: Path) -> None:
    start = {"data": {"name": "digits"}, "epochs": 1, "method": "fedncm"}
    result = ug.run("lora", rounds=1, start=start, lr=1e-9, **digits(tmp_path))
    assert result.accuracy == pytest.approx(result.start["fedncm"].accuracy, abs=0.01) and result.accuracy > 0.6
    assert not any("lora" in name for name in result.start["fedncm"].model.state_dict())
    file = result.folder / "model.safetensors"
    again = ug.run("lora", rounds=1, start={"weights": str(file)}, lr=1e-9, **digits(tmp_path))
    assert again.accuracy == result.accuracy


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "logistic"}, "model.lora: the model has no linear layer below its head"),
        ({"options": {"layers": ["hiden1.0"]}}, "layers has 'hiden1.0', which is no linear layer.*hidden1.0"),
        ({"options": {"rank": 0}}, "method.rank"),
        ({"model_options": {"lora": {"rank": 3}}}, "model.lora: the method has options for that"),
        ({"model_options": {"lora": {"rang": 3}}}, "model.lora.rang"),
        ({"model_options": {"ladder": ["logistic"]}}, "model.*has lora and a ladder"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        ug.run("lora", **{**digits(tmp_path), **changes})


def test_adapters_of_an_encoder_layer_of_torch_count_in_evaluation() -> None:
    """Its fused path, which only evaluation takes, would leave them out."""
    encoder = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    module = add_adapters(torch.nn.Sequential(encoder, torch.nn.Linear(4, 3)), Adapters(2))
    for name, value in module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value)
    x = torch.randn(2, 5, 4)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(x), module.train()(x))


def test_own_adapters_compute_what_those_of_peft_compute() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = transformer()
    own = add_adapters(transformer(), Adapters(3, 7.0))
    names = [name for name, _ in base.named_modules() if name.rpartition(".")[2] in ("query", "key", "value")]
    config = peft.LoraConfig(r=3, lora_alpha=7.0, lora_dropout=0.0, target_modules=names)
    theirs = peft.inject_adapter_in_model(config, base)
    state = theirs.state_dict()
    own.load_state_dict({name: torch.randn_like(value) for name, value in own.state_dict().items()})
    renamed = {name.replace(".base_layer.", ".").replace(".default.weight", ""): name for name in state}
    theirs.load_state_dict({theirs_name: own.state_dict()[name] for name, theirs_name in renamed.items()})
    x = torch.from_numpy(texts().x)
    results = []
    for module in (own, theirs):
        loss = functional.cross_entropy(module(x), torch.from_numpy(texts().y))
        trained = {name: value for name, value in module.named_parameters() if "lora" in name}
        results.append((loss, torch.autograd.grad(loss, list(trained.values()))))
    torch.testing.assert_close(results[0], results[1])

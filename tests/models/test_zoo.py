"""Every architecture with every normalisation: shapes, levels, gradients, batching, files."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from undergrowth.models import Staged, builder, names
from undergrowth.models.catalogue import TABLE

CLASSES = 5
Case = tuple[str, tuple[int, ...], str, dict[str, object]]

# Narrow models, so that all of this takes seconds; the real widths are counted in test_catalogue.
CASES: list[Case] = [
    ("logistic", (7,), "none", {}),
    ("logistic", (1, 8, 8), "none", {}),
    ("mlp", (7,), "none", {}),
    ("mlp", (1, 8, 8), "none", {"hidden": (6, 5, 4, 3)}),
    ("mlp", (7,), "none", {"hidden": ()}),
    ("cnn", (1, 8, 8), "none", {"hidden": 16}),
    ("cnn", (1, 28, 28), "none", {"hidden": 16}),
    ("cnn", (3, 13, 10), "none", {"hidden": 16}),
    ("cnn", (2, 4, 4), "none", {"hidden": 16}),
    *[("wrn-10-1", shape, norm, {}) for shape in ((1, 8, 8), (3, 17, 9)) for norm in ("batch", "group")],
    ("wrn-16-2", (3, 8, 8), "batch", {}),
    *[("resnet-8", shape, norm, {}) for shape in ((1, 8, 8), (3, 70, 9)) for norm in ("batch", "group")],
    *[("resnet-18", (3, 16, 16), norm, {"width": 4}) for norm in ("batch", "group")],
    ("resnet-18", (3, 8, 8), "group", {"width": 4}),
    ("resnet-18", (3, 96, 80), "batch", {"width": 4}),
    *[("resnet-34", (1, 12, 16), norm, {"width": 4}) for norm in ("batch", "group")],
    *[("vgg-16", (3, 32, 32), norm, {"width": 4, "hidden": 16}) for norm in ("batch", "group", "none")],
    ("vgg-16", (1, 40, 64), "batch", {"width": 4, "hidden": 16}),
    *[("mobilenetv3-small", shape, "batch", {}) for shape in ((1, 17, 17), (3, 20, 40))],
    ("mobilenetv3-small", (3, 8, 8), "group", {}),
    ("mobilenetv3-small", (3, 40, 40), "batch", {"stride": 2}),
    ("efficientnet-b0", (1, 17, 17), "batch", {}),
    ("efficientnet-b0", (3, 8, 8), "group", {}),
    ("efficientnet-lite0", (3, 40, 33), "batch", {}),
    ("efficientnetv2-b0", (1, 17, 20), "batch", {"width": 8}),
    ("efficientnetv2-b0", (3, 8, 8), "group", {"width": 8}),
    ("fusion-transformer", (3, 8, 12), "none", {"width": 8, "depth": 3, "heads": 2}),
    ("squeezenet", (3, 32, 32), "none", {}),
    ("squeezenet", (1, 17, 20), "none", {}),
    ("transformer", (6,), "none", {"vocabulary": 11, "width": 8}),
    ("transformer", (6,), "none", {"vocabulary": 9, "width": 6, "heads": 3, "depth": 3}),
    ("lstm", (6,), "none", {"vocabulary": 11, "hidden": 8}),
    ("lstm", (1,), "none", {"vocabulary": 11, "hidden": 8}),
    ("lstm-words", (6,), "none", {"vocabulary": 11, "embedding": 5, "hidden": 8}),
    # With a projection head.
    ("mlp", (7,), "none", {"projection": 5}),
    ("cnn", (1, 8, 8), "none", {"hidden": 16, "projection": 5}),
    ("wrn-10-1", (1, 8, 8), "batch", {"projection": 5}),
]


def title(case: Case) -> str:
    name, shape, norm, _ = case
    return f"{name}-{'x'.join(map(str, shape))}-{norm}"


every_case = pytest.mark.parametrize("case", CASES, ids=title)
# One of each architecture, for what neither the shape of the inputs nor the normalisation changes.
every_architecture = pytest.mark.parametrize("case", list({case[0]: case for case in CASES}.values()), ids=title)
# Recurrent layers and running statistics do not batch.
every_batchable_case = pytest.mark.parametrize(
    "case", [case for case in CASES if not case[0].startswith("lstm") and case[2] != "batch"], ids=title
)


def recipe(case: Case) -> Callable[[], nn.Module]:
    name, shape, norm, options = case
    return builder(name, shape, CLASSES, norm=norm, **options)


def fresh(case: Case, seed: int = 0) -> Staged:
    torch.manual_seed(seed)
    module = recipe(case)()
    assert isinstance(module, Staged)
    return module


def samples(case: Case, count: int = 4) -> Tensor:
    name, shape, _, _ = case
    generator = torch.Generator().manual_seed(1)
    if name.startswith(("lstm", "transformer")):
        return torch.randint(0, 11, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def test_the_cases_cover_every_architecture_with_every_normalisation() -> None:
    covered = {(row.name, norm) for name, _, norm, _ in CASES for row in TABLE if row.numbers_in(name) is not None}
    assert covered == {(row.name, norm) for row in TABLE for norm in row.norms}
    assert {name for name, _ in covered} == set(names())


@every_case
def test_the_output_has_one_score_per_class(case: Case) -> None:
    module = fresh(case)
    assert module(samples(case)).shape == (4, CLASSES)
    # A device may hold a single sample.
    assert module.train()(samples(case, count=1)).isfinite().all()


@every_case
def test_levels_are_stages_in_order_and_both_parts_give_the_whole(case: Case) -> None:
    module = fresh(case).eval()
    order = ["low", "mid", "up", *(["projection"] if "projection" in case[3] else []), "head"]
    assert list(module.levels) == (["head"] if case[0] == "logistic" else order)
    stages = [name for name, _ in module.named_children()]
    assert set(module.levels.values()) <= set(stages)
    positions = [module.position(level) for level in module.levels]
    assert positions == sorted(positions)
    if case[0] not in ("logistic", "mlp"):
        assert len(set(positions)) >= 4
    assert module.levels["head"] == stages[-1]
    assert isinstance(module[-1], nn.Linear)

    inputs = samples(case)
    whole = module(inputs)
    for position in positions:
        features = module[:position](inputs)
        assert torch.equal(module[position:](features), whole)
    if len(case[1]) == 3 and len(set(positions)) >= 4 and case[0] not in ("mlp", "fusion-transformer"):
        assert all(module[:position](inputs).ndim == 4 for position in positions[:3])


def test_levels_of_a_deep_mlp_are_spread_and_those_of_a_shallow_one_coincide() -> None:
    def levels(*hidden: int) -> list[str]:
        module = builder("mlp", (3,), 2, hidden=hidden)()
        assert isinstance(module, Staged)
        return list(module.levels.values())

    assert levels() == ["head"] * 4
    assert levels(4) == ["head"] * 4
    assert levels(4, 4) == ["hidden2", "hidden2", "head", "head"]
    assert levels(4, 4, 4) == ["hidden2", "hidden3", "head", "head"]
    assert levels(4, 4, 4, 4) == ["hidden2", "hidden3", "hidden4", "head"]


def test_features_of_wrn_have_the_sizes_of_shis_thesis() -> None:
    module = builder("wrn-40-1", (3, 32, 32), 10)()
    assert isinstance(module, Staged)
    inputs = torch.zeros(1, 3, 32, 32)
    sizes = [tuple(module[: module.position(level)](inputs).shape[1:]) for level in ("low", "mid", "up")]
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


@every_architecture
def test_the_same_seed_gives_the_same_module_and_another_seed_another(case: Case) -> None:
    first, again, other = fresh(case, 3), fresh(case, 3), fresh(case, 4)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(first[-1].weight, other[-1].weight)


@every_architecture
def test_the_recipe_can_be_sent_to_another_process(case: Case) -> None:
    make = pickle.loads(pickle.dumps(recipe(case)))
    torch.manual_seed(0)
    assert torch.equal(make()[-1].weight, fresh(case)[-1].weight)


@every_case
def test_every_parameter_gets_a_gradient_through_a_functional_call(case: Case) -> None:
    module = fresh(case).train()
    parameters = {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    scores = functional_call(module, (parameters, buffers), (samples(case),))
    loss = functional.cross_entropy(scores, torch.arange(4) % CLASSES)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    for name, gradient in zip(parameters, gradients, strict=True):
        # LSTM layers start from a zero state, so one position gives no gradient for the recurrent weights.
        if case[0] == "lstm" and case[1] == (1,) and "weight_hh" in name:
            continue
        assert gradient.isfinite().all(), name
        assert gradient.abs().max() > 0, name


@every_batchable_case
def test_two_clients_can_be_batched(case: Case) -> None:
    clients = [fresh(case, seed).double() for seed in (0, 1)]  # in float64, so that rounding does not matter
    parameters, buffers = stack_module_state(clients)
    inputs = samples(case)
    inputs = inputs.double() if inputs.is_floating_point() else inputs

    def forward(own: dict[str, Tensor], statistics: dict[str, Tensor]) -> Tensor:
        return functional_call(clients[0], (own, statistics), (inputs,))

    together = vmap(forward)(parameters, buffers)
    alone = torch.stack([client(inputs) for client in clients])
    torch.testing.assert_close(together, alone)


@every_case
def test_the_input_is_not_changed(case: Case) -> None:
    module = fresh(case)
    assert not [part for part in module.modules() if getattr(part, "inplace", False)]
    inputs = samples(case)
    before = inputs.clone()
    module(inputs)
    assert torch.equal(inputs, before)


@every_architecture
def test_the_state_can_be_saved_and_loaded(case: Case, tmp_path) -> None:
    module = fresh(case, 7)
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    other = fresh(case, 8)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(module.eval()(samples(case)), other.eval()(samples(case)))


def test_a_projection_is_two_layers_before_the_last_layer() -> None:
    plain, projected = (fresh(("wrn-10-1", (1, 8, 8), "batch", options)) for options in ({}, {"projection": 5}))
    assert list(projected._modules) == ["stem", "group1", "group2", "group3", "pool", "projection", "head"]
    shapes = {name: tuple(value.shape) for name, value in projected.state_dict().items()}
    assert shapes["projection.0.weight"] == (64, 64) and shapes["projection.2.weight"] == (5, 64)
    assert shapes["head.weight"] == (CLASSES, 5)
    below = [name for name in plain.state_dict() if not name.startswith("head")]
    assert all(torch.equal(plain.state_dict()[name], projected.state_dict()[name]) for name in below)
    shallow = fresh(("mlp", (7,), "none", {"projection": 5}))
    assert shallow.levels == {**dict.fromkeys(("low", "mid", "up", "projection"), "projection"), "head": "head"}


def test_group_normalisation_uses_up_to_32_groups_of_two_channels_or_more() -> None:
    module = fresh(("resnet-18", (3, 8, 8), "group", {"width": 16}))
    groups = {part.num_channels: part.num_groups for part in module.modules() if isinstance(part, nn.GroupNorm)}
    assert groups == {16: 8, 32: 16, 64: 32, 128: 32}
    assert not [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]


def test_large_images_get_the_large_stem() -> None:
    small = builder("resnet-18", (3, 64, 64), 2, width=4)()
    large = builder("resnet-18", (3, 65, 64), 2, width=4)()
    assert small.get_submodule("stem.0").kernel_size == (3, 3)
    assert large.get_submodule("stem.0").kernel_size == (7, 7)


@pytest.mark.parametrize(
    "torch_device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
        ),
    ],
)
def test_an_lstm_has_a_gradient_in_evaluation_mode(torch_device: str) -> None:
    """The Fisher information needs it, and cuDNN refuses it."""
    model = builder("lstm", (6,), CLASSES, vocabulary=11, hidden=8)().to(torch_device).eval()
    model(torch.arange(6, device=torch_device)[None]).sum().backward()
    assert all(value.grad is not None for value in model.parameters())
    assert not any(module.training for module in model.modules())

"""The rules for outputs on meta tensors agree with torch's own, wherever they answer."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from undergrowth.devices.output_shapes import infer_outputs

aten = torch.ops.aten


def described(outputs: object) -> object:
    if isinstance(outputs, torch.Tensor):
        return outputs.shape, outputs.stride(), outputs.dtype, outputs.device
    return [described(each) for each in outputs] if isinstance(outputs, list | tuple) else outputs


class Comparison(TorchDispatchMode):
    """Compares every operation that a rule covers with torch's answer."""

    def __init__(self) -> None:
        super().__init__()
        self.covered: set[object] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        guessed = infer_outputs(func, args, kwargs)
        outputs = func(*args, **kwargs)
        if guessed is not NotImplemented:
            assert described(guessed) == described(outputs), func
            self.covered.add(func)
        return outputs


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 3))
    images = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 5, stride=2, groups=2, bias=False),
        nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 6, (1, 3), dilation=(1, 2), padding=(0, 2)), nn.Sigmoid(),
        nn.MaxPool2d(3, stride=1, padding=1), nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip
    return {"dense": (plain, (1, 8, 8)), "convolutions": (images, (3, 17, 19))}


@pytest.mark.parametrize("name", networks())
@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("training", [True, False])
def test_a_step_of_training(name: str, batch: int, training: bool) -> None:
    module, shape = networks()[name]
    module = module.to("meta").train(training)
    x, y = torch.zeros((batch, *shape), device="meta"), torch.zeros(batch, dtype=torch.int64, device="meta")
    with Comparison() as compared:
        F.cross_entropy(module(x), y).backward()
    needed = {aten.addmm.default, aten.mm.default, aten.nll_loss_forward.default, aten._log_softmax.default}
    if name == "convolutions":
        needed |= {aten.convolution_backward.default, aten.max_pool2d_with_indices_backward.default}
    assert compared.covered >= needed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operations_of_elements(dtype: torch.dtype) -> None:
    shapes = [(), (1,), (4,), (1, 4), (3, 1), (3, 4), (2, 1, 1), (2, 3, 1), (2, 3, 4), (1, 1, 1)]
    with torch.no_grad(), Comparison() as compared:
        for first in shapes:
            a = meta(*first, dtype=dtype)
            for second in shapes:
                b = meta(*second, dtype=dtype)
                try:
                    a + b
                except RuntimeError:
                    continue
                a - b, a * b, a / b
            a.relu(), -a, a.abs(), a.sqrt(), a.exp(), a.log(), a.sigmoid(), a.tanh(), a.clamp_min(0.0)
            a + 1, 2.0 * a, a / 3, 1 - a, a**2, a < 1, a > 1, a == 0, a != 2
            (
                torch.zeros_like(a),
                torch.ones_like(a),
                a.sum(),
                a.mean(),
                a.lerp(a, 0.3),
                a.lerp(a, a),
                torch.special.entr(a),
            )
            if a.ndim:
                a.softmax(0), a.log_softmax(-1), a.sum(0), a.mean(-1, keepdim=True), a.sum((-1,))
            lists = [meta(3, dtype=dtype), meta(2, 5, dtype=dtype)], [meta(3, dtype=dtype), meta(2, 5, dtype=dtype)]
            torch._foreach_add(*lists)
            torch._foreach_add(*lists, alpha=-0.1)
            torch._foreach_add_(*lists)
            torch._foreach_mul(lists[0], 0.9)
    assert len(compared.covered) > 25


@pytest.mark.parametrize(
    "shape", [(4,), (1,), (3, 4), (3, 1), (1, 4), (2, 3, 4), (2, 1, 4), (2, 3, 4, 5), (2, 3, 1, 1)]
)
def test_operations_of_expanded_elements(shape: tuple[int, ...]) -> None:
    bases = [[1 if once else size for once, size in zip(expanded, shape, strict=True)]
             for expanded in product([False, True], repeat=len(shape))]  # fmt: skip
    views = [torch.empty(base, device="meta").expand(shape) for base in bases]
    views.append(torch.empty(*shape[:-1], shape[-1] + 3, device="meta")[..., : shape[-1]])
    with Comparison() as compared:
        for first, second in product(views, repeat=2):
            first * second, first / 3, first.relu(), torch.zeros_like(first), first > 0
            aten.threshold_backward(first, second, 0)
    assert aten.threshold_backward.default in compared.covered
    if min(shape) > 1:  # dimensions of size one may have any stride
        assert all(infer_outputs(aten.mul.Tensor, pair, {}) is not NotImplemented for pair in product(views, repeat=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_lists_and_extremes(dtype: torch.dtype) -> None:
    positions, mask = torch.empty(3, dtype=torch.int64, device="meta"), torch.empty(5, dtype=torch.bool, device="meta")
    with torch.no_grad(), Comparison() as compared:
        for shape in ((5,), (5, 1), (5, 2, 3, 1)):
            values = meta(*shape, dtype=dtype)
            values[positions], values[positions[:0]], values[positions.reshape(3, 1)], values.aminmax()
            values.sort(), positions.sort(), values.sort(stable=True, descending=True)
            torch.empty(shape, dtype=torch.int64, device="meta")[positions]
            for dim in range(-1, len(shape) + 1):
                torch.stack([values, values, values], dim)
            for dim in range(-len(shape), len(shape)):
                torch.cat([values, values], dim)
        torch.cat([meta(2, 3, dtype=dtype), meta(4, 3, dtype=dtype)]), torch.cat([meta(3, 2, dtype=dtype)], 1)
        torch.cat([meta(0, dtype=dtype), meta(4, 3, dtype=dtype)])
        torch.stack([meta(dtype=dtype)]), meta(dtype=dtype).aminmax(), meta(4, 5, dtype=dtype).t()[positions]
    assert compared.covered == {
        aten.index.Tensor, aten.stack.default, aten.cat.default, aten.sort.default, aten.sort.stable,
        aten.aminmax.default,
    }  # fmt: skip
    values = meta(5, 5, dtype=dtype)
    for indices in ([mask], [positions, positions], [None, positions], [positions.reshape(3, 1)]):
        assert infer_outputs(aten.index.Tensor, (values, indices), {}) is NotImplemented
    for tensors, dim in (([values, meta(5, dtype=dtype)], 0), ([values], 3), ([values, values.t()], 0)):
        assert infer_outputs(aten.stack.default, (tensors, dim), {}) is NotImplemented
    for tensors, dim in (([values, meta(5, dtype=dtype)], 0), ([values], 2), ([values, meta(4, 4, dtype=dtype)], 0)):
        assert infer_outputs(aten.cat.default, (tensors, dim), {}) is NotImplemented
    assert infer_outputs(aten.aminmax.default, (values,), {"dim": 0}) is NotImplemented


@pytest.mark.parametrize("wanted", [each for each in product([True, False], repeat=3) if any(each)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_a_normalisation_that_are_wanted(wanted: tuple[bool, ...], training: bool) -> None:
    x, figures = torch.empty(4, 3, 2, 2, device="meta"), [torch.empty(3, device="meta") for _ in range(5)]
    with Comparison() as compared:
        aten.native_batch_norm_backward(x, x, *figures, training, 1e-5, list(wanted))
    assert aten.native_batch_norm_backward.default in compared.covered


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_of_views(groups: int) -> None:
    """As the vector engine calls them: the clients of a stack are groups of channels."""
    x, weight = meta(3, 2, 4, 8, 8).transpose(0, 1).flatten(1, 2), meta(6, 12 // groups, 3, 3)
    views = [meta(12, 2, 8, 8).transpose(0, 1), meta(2, 8, 12, 8).transpose(1, 2), x]
    with Comparison() as compared:
        for view in views:
            torch.conv2d(view, weight, padding=1, groups=groups).square().sum().backward()
    assert aten.convolution_backward.default in compared.covered


def test_other_layouts_types_and_wrong_shapes_are_left_to_torch() -> None:
    usual = meta(3, 4)
    for odd in (meta(4, 3).t(), meta(3, 4, dtype=torch.float64), torch.empty(3, 4, dtype=torch.int64, device="meta")):
        assert infer_outputs(aten.add.Tensor, (usual, odd), {}) is NotImplemented
    assert infer_outputs(aten.add.Tensor, (usual, meta(5, 4)), {}) is NotImplemented
    assert infer_outputs(aten.mm.default, (usual, meta(3, 4)), {}) is NotImplemented
    assert infer_outputs(aten.relu.default, (usual,), {"out": usual}) is NotImplemented
    image = meta(1, 1, 2, 2)
    sizes = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert infer_outputs(aten.convolution.default, (image, meta(1, 1, 3, 3), None, *sizes), {}) is NotImplemented
    assert infer_outputs(aten.topk.default, (usual, 1), {}) is NotImplemented

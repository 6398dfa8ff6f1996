"""The layers with Triton kernels, compared with torch's layers client by client. They need a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core.dropout import NUMBER_OF_KEYS, drop
from undergrowth.engines.vector.gpu_layers import kernels
from undergrowth.engines.vector.layers import Stacked
from undergrowth.learning.descent import descend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or kernels() is None, reason="needs a GPU and Triton"),
    # The first product of a thread finds no context if the thread before it had none.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

# clients, samples of each, channels, side, outputs, window, padding, stride
CONVOLUTIONS = [
    (3, 4, 5, 8, 6, 5, 2, 1),
    (2, 6, 16, 16, 32, 3, 1, 2),
    (4, 20, 1, 28, 32, 5, 2, 1),
    (2, 5, 6, 7, 40, 1, 0, 2),
    (1, 3, 33, 6, 130, 3, 1, 1),
    (2, 4, 64, 8, 64, 3, 1, 1),
    (2, 3, 24, 5, 20, 3, 1, 1),
]


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize(("tf32", "allowed"), [(False, 1e-5), (True, 3e-3)])
@pytest.mark.parametrize("shared", [False, True], ids=["own weights", "one for all"])
def test_a_convolution(shape: tuple[int, ...], tf32: bool, allowed: float, shared: bool) -> None:
    clients, samples, channels, side, outputs, size, padding, stride = shape
    torch.manual_seed(0)
    x = torch.randn(clients * samples, channels, side, side, device="cuda", requires_grad=True)
    weight = torch.randn(1 if shared else clients, outputs, channels, size, size, device="cuda", requires_grad=True)
    bias = torch.randn(1 if shared else clients, outputs, device="cuda", requires_grad=True)
    own = [value.expand(clients, *value.shape[1:]) for value in (weight, bias)]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        found = kernels().convolve(x, *own, stride, padding)  # type: ignore[union-attr]
        slope = torch.randn_like(found)
        gradients = torch.autograd.grad(found, (x, weight, bias), slope)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    apart = [
        F.conv2d(some.double(), own[0][client].double(), own[1][client].double(), stride, padding)
        for client, some in enumerate(x.split(samples))
    ]
    wanted = torch.autograd.grad(torch.cat(apart), (x, weight, bias), slope.double())
    for one, other in zip((found, *gradients), (torch.cat(apart), *wanted), strict=True):
        assert difference(one, other) < allowed


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-6, 1e6, 1e30])
def test_short_numbers_of_any_size(size: float) -> None:
    """Values of any magnitude keep their precision, and do not affect other clients."""
    for sizes in ((1.0, size, 1.0), (size, 1.0, 1.0)):
        found, wanted = (both(short, sizes) for short in (True, False))
        for client in range(3):
            for one, other in zip(found, wanted, strict=True):
                assert difference(one[client], other[client]) < 3e-3


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_values_that_are_not_finite_stay_with_their_client(bad: float) -> None:
    found, wanted = (both(short, (1.0, 1.0, 1.0), bad) for short in (True, False))
    for one, other in zip(found, wanted, strict=True):
        assert not one[1].isfinite().all()
        for client in (0, 2):
            assert difference(one[client], other[client]) < 3e-3


def both(short: bool, sizes: tuple[float, ...], bad: float | None = None) -> list[Tensor]:
    """Output and gradients of a convolution of three clients. Maps are multiplied by `sizes`, weights divided by it."""
    torch.manual_seed(0)
    size = torch.tensor(sizes, device="cuda").view(-1, 1, 1, 1, 1)
    x = torch.randn(3, 4, 16, 8, 8, device="cuda") * size
    weight = torch.randn(3, 32, 16, 3, 3, device="cuda") / size.clamp_min(1e-30)
    slope = torch.randn(3, 4, 32, 8, 8, device="cuda") * size**0.2  # its products must be finite, too
    if bad is not None:
        x[1, 0, 0, 0, 0] = weight[1, 0, 0, 0, 0] = slope[1, 0, 0, 0, 0] = bad
    x, weight, bias = x.requires_grad_(), weight.requires_grad_(), torch.zeros(3, 32, device="cuda", requires_grad=True)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = short
    try:
        out = kernels().convolve(x.flatten(0, 1), weight, bias, 1, 1).unflatten(0, (3, 4))  # type: ignore[union-attr]
        return [out, *torch.autograd.grad(out, (x, weight, bias), slope)]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("shape", [(3, 20, 100, 70), (2, 5, 64, 64), (1, 33, 130, 200), (2, 70, 96, 62)], ids=str)
@pytest.mark.parametrize(("tf32", "allowed"), [(False, 1e-5), (True, 3e-3)])
@pytest.mark.parametrize("deep", [False, True], ids=["first layer", "later layer"])
def test_a_linear_layer_that_descends(shape: tuple[int, ...], tf32: bool, allowed: float, deep: bool) -> None:
    clients, samples, inputs, outputs = shape
    torch.manual_seed(0)
    x = torch.randn(clients * samples, inputs, device="cuda", requires_grad=deep)
    before = torch.randn(clients, outputs, inputs, device="cuda")
    weight, bias = before.clone().requires_grad_(), torch.randn(clients, outputs, device="cuda", requires_grad=True)
    slope = torch.randn(clients * samples, outputs, device="cuda")
    allows = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with Stacked(clients, None):
            out = descend(x, weight, bias, 0.1)
        gradients = torch.autograd.grad(out, (bias, x) if deep else (bias,), slope)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allows
    rows, slopes = (value.detach().double().unflatten(0, (clients, samples)) for value in (x, slope))
    wanted = slopes.sum(1), (slopes @ before.double()).flatten(0, 1)
    for one, other in zip(gradients, wanted[: len(gradients)], strict=True):
        assert difference(one, other) < allowed
    change = 0.1 * slopes.transpose(1, 2) @ rows
    assert difference(before - weight.detach(), change) < 3 * allowed


@pytest.mark.parametrize(("size", "side"), [(2, 8), (2, 9), (3, 10)])
def test_pooling(size: int, side: int) -> None:
    x = torch.randn(6, 5, side, side, device="cuda", requires_grad=True)
    found, wanted = kernels().pool(x, size), F.max_pool2d(x, size)  # type: ignore[union-attr]
    assert torch.equal(found, wanted)
    slope = torch.randn_like(wanted)
    assert torch.equal(torch.autograd.grad(found, x, slope)[0], torch.autograd.grad(wanted, x, slope)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(6, 5, 7, 3), (4, 16, 32, 32), (8, 33), (2, 3, 5)], ids=str)
def test_dropout(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The kernel drops what the plain function drops, bit for bit, and so does its backward pass."""
    x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    keys = torch.randint(NUMBER_OF_KEYS, shape[:1], device="cuda", dtype=torch.int32) * 2 + 1  # also negative ones
    slope = torch.randn_like(x)
    with Stacked(2, None):
        found = drop(x, keys, 0.3)
    wanted = drop(x, keys, 0.3)
    assert found.grad_fn.name() != wanted.grad_fn.name()  # type: ignore[union-attr]
    assert torch.equal(found, wanted) and 0 < float((found == 0).double().mean()) < 1
    assert torch.equal(torch.autograd.grad(found, x, slope)[0], torch.autograd.grad(wanted, x, slope)[0])


@pytest.mark.parametrize("rectified", [False, True], ids=["alone", "with a ReLU"])
@pytest.mark.parametrize("masked", [False, True])
def test_batch_normalisation_far_from_zero(masked: bool, rectified: bool) -> None:
    clients, samples, channels = 3, 5, 20
    x = (torch.randn(clients * samples, channels, 4, 4, device="cuda") * 3 + 50).requires_grad_()
    weight, bias = (torch.randn(clients, channels, device="cuda", requires_grad=True) for _ in range(2))
    mask = torch.ones(clients, samples, device="cuda")
    if masked:
        mask[0, 3:] = mask[2, 1:] = 0
    real = mask.reshape(-1, 1, 1, 1)
    slope = torch.randn_like(x) * real
    results = []
    for layout in (torch.channels_last, torch.contiguous_format):  # the first one uses the kernels
        mean, variance = torch.zeros(clients, channels, device="cuda"), torch.ones(clients, channels, device="cuda")
        maps = x.contiguous(memory_format=layout)
        with Stacked(clients, mask if masked else None):
            out = F.batch_norm(maps, mean, variance, weight, bias, True, 0.1, 1e-5)
            out = F.relu(out) if rectified else out
        gradients = torch.autograd.grad(out, (x, weight, bias), slope)
        results.append((out * real, mean, variance, *gradients))
    for one, other in zip(*results, strict=True):
        assert difference(one, other) < 1e-4


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("rectified", [False, True], ids=["alone", "with a ReLU"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_normalisation_in_evaluation_mode(dtype: torch.dtype, rectified: bool, frozen: bool) -> None:
    """With running statistics, which do not depend on the values. Those of padding do not matter."""
    clients, samples, channels = 3, 5, 20
    x = torch.randn(clients * samples, channels, 4, 4, device="cuda") * 3 + 5
    x = x.to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias, mean = (torch.randn(clients, channels, device="cuda", requires_grad=not frozen) for _ in range(3))
    mean, variance = mean.detach() + 5, torch.rand(clients, channels, device="cuda") + 0.5
    before = mean.clone(), variance.clone()
    mask = torch.ones(clients, samples, device="cuda")
    mask[1, 3:] = 0
    slope = torch.randn_like(x)
    with Stacked(clients, mask):
        found = F.batch_norm(x, mean, variance, weight, bias, False, 0.1, 1e-5)
        found = F.relu(found) if rectified else found
    own = zip(x.double().split(samples), mean.double(), variance.double(), weight.double(), bias.double(), strict=True)
    wanted = torch.cat([F.batch_norm(some, *each, False, 0.1, 1e-5) for some, *each in own])
    wanted = F.relu(wanted) if rectified else wanted
    inputs = (x,) if frozen else (x, weight, bias)
    gradients = [torch.autograd.grad(each, inputs, slope.to(each)) for each in (found, wanted)]
    assert found.dtype == dtype and torch.equal(mean, before[0]) and torch.equal(variance, before[1])
    for one, other in zip((found, *gradients[0]), (wanted, *gradients[1]), strict=True):
        assert difference(one, other) < (1e-5 if dtype == torch.float32 else 1e-2)


def test_a_normalised_map_that_is_used_with_and_without_its_relu() -> None:
    """The gradient is the sum of both, although the ReLU has a backward pass together with the normalisation."""
    x = torch.randn(6, 16, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = (torch.randn(2, 16, device="cuda", requires_grad=True) for _ in range(2))
    with Stacked(2, None):
        normalised = F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)
        found = F.relu(normalised) + 2 * normalised
    own = zip(x.split(3), weight, bias, strict=True)
    alone = torch.cat([F.batch_norm(some, None, None, *each, True, 0.1, 1e-5) for some, *each in own])
    wanted, slope = F.relu(alone) + 2 * alone, torch.randn_like(found)
    gradients = [torch.autograd.grad(each, (x, weight, bias), slope) for each in (found, wanted)]
    for one, other in zip((found, *gradients[0]), (wanted, *gradients[1]), strict=True):
        assert difference(one, other) < 1e-4


def difference(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).norm() / other.norm().clamp_min(1e-300))

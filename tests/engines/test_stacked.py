"""Every stacked layer gives what the plain layer gives client by client, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.engines.vector.layers import LAYERS, Stacked

CLIENTS, BATCH = 3, 4


def randoms(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(CLIENTS, *shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def check_layer(layer: Callable[..., Tensor], x: Tensor, weights: list[Tensor]) -> None:
    """Stacked against one client after the other: values and all gradients."""
    with Stacked(CLIENTS, None):
        together = layer(x.flatten(0, 1), *weights)
    apart = torch.cat([layer(x[k], *(weight[k] for weight in weights)) for k in range(CLIENTS)])
    torch.testing.assert_close(together, apart)
    slope = torch.linspace(-1, 1, together.numel(), dtype=torch.float64).reshape(together.shape)
    wanted = [tensor for tensor in (x, *weights) if tensor.requires_grad]
    for one, other in zip(
        torch.autograd.grad((together * slope).sum(), wanted),
        torch.autograd.grad((apart * slope).sum(), wanted),
        strict=False,
    ):
        torch.testing.assert_close(one, other)


def test_linear() -> None:
    x, weight, bias = randoms((BATCH, 6), (5, 6), (5,))
    check_layer(F.linear, x, [weight, bias])
    check_layer(F.linear, x, [weight])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1, "same"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(stride: int, padding: Any, groups: int) -> None:
    if padding == "same" and stride == 2:
        pytest.skip("torch has no such convolution either")
    x, weight, bias = randoms((BATCH, 4, 8, 8), (6, 4 // groups, 3, 3), (6,))
    check_layer(lambda x, w, b: F.conv2d(x, w, b, stride=stride, padding=padding, groups=groups), x, [weight, bias])


def test_frozen_weights_are_used_once_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """One product with the long batch, in the backward pass too, and no gradient of the weights."""
    generator = torch.Generator().manual_seed(1)
    weight, bias, scale = (torch.randn(*shape, generator=generator).double() for shape in ((5, 6), (5,), (6,)))
    (x,) = randoms((BATCH, 6))
    shapes: list[tuple[int, ...]] = []
    plain = F.linear

    def watched(*args: Tensor) -> Tensor:
        shapes.append(tuple(args[0].shape))
        return plain(*args)

    with Stacked(CLIENTS, None):
        normal = F.layer_norm(x.flatten(0, 1), (6,), scale, scale)
    monkeypatch.setattr("undergrowth.engines.vector.layers.F.linear", watched)
    together = LAYERS[plain](Stacked(CLIENTS, None), normal, weight, bias)
    monkeypatch.undo()
    assert shapes == [(CLIENTS * BATCH, 6)]
    apart = torch.cat([F.linear(F.layer_norm(each, (6,), scale, scale), weight, bias) for each in x])
    torch.testing.assert_close(together, apart)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), x)[0] for each in (together, apart)))


def test_group_and_layer_norm() -> None:
    x, weight, bias = randoms((BATCH, 6, 3, 3), (6,), (6,))
    check_layer(lambda x, w, b: F.group_norm(x, 3, w, b), x, [weight, bias])
    x, weight, bias = randoms((BATCH, 5), (5,), (5,))
    check_layer(lambda x, w, b: F.layer_norm(x, (5,), w, b), x, [weight, bias])


def test_embedding() -> None:
    (weight,) = randoms((11, 3))
    tokens = torch.arange(CLIENTS * BATCH * 2).reshape(CLIENTS, BATCH, 2) % 11
    check_layer(F.embedding, tokens, [weight])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_lstm(layers: int, bias: bool, batch_first: bool) -> None:
    """Outputs and last states, with their gradients, are those of torch's layer."""
    plain = torch.nn.LSTM(3, 5, layers, bias=bias, batch_first=batch_first).double()
    names = [name for name, _ in plain.named_parameters()]
    x, *weights = randoms((BATCH, 6, 3), *(tuple(weight.shape) for weight in plain.parameters()))

    def layer(x: Tensor, *weights: Tensor) -> Tensor:
        """All that the layer returns, in rows of samples."""
        rows = x if batch_first else x.transpose(0, 1)
        plain._parameters.update(zip(names, weights, strict=True))
        outputs, states = plain(rows)
        outputs = outputs if batch_first else outputs.transpose(0, 1)
        return torch.cat([outputs.flatten(1), *(state.transpose(0, 1).flatten(1) for state in states)], 1)

    check_layer(layer, x, weights)


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 2}, {"num_layers": 2, "dropout": 0.5}])
def test_an_lstm_that_cannot_be_stacked_says_so(options: dict[str, Any]) -> None:
    plain = torch.nn.LSTM(3, 5, batch_first=True, **options)
    with Stacked(CLIENTS, None), pytest.raises(NotImplementedError, match="a stacked LSTM has one direction"):
        plain(torch.zeros(CLIENTS * BATCH, 6, 3))


@pytest.mark.parametrize("shape", [(6, 3, 3), (6,)])
def test_batch_norm_in_training_and_evaluation(shape: tuple[int, ...]) -> None:
    x, weight, bias = randoms((BATCH, *shape), (6,), (6,))
    mean, variance = torch.randn(CLIENTS, 6, dtype=torch.float64), torch.rand(CLIENTS, 6, dtype=torch.float64)
    check_layer(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=False), x, [mean, variance, weight, bias])
    stacked, plain = (mean.clone(), variance.clone()), (mean.clone(), variance.clone())
    with Stacked(CLIENTS, None):
        together = F.batch_norm(x.flatten(0, 1), *stacked, weight, bias, training=True)
    apart = torch.cat([
        F.batch_norm(x[k], plain[0][k], plain[1][k], weight[k], bias[k], training=True) for k in range(CLIENTS)
    ])  # fmt: skip
    torch.testing.assert_close(together, apart)
    torch.testing.assert_close(stacked, plain)


def test_batch_norm_does_not_see_samples_that_only_fill_up_the_stack() -> None:
    x, weight, bias = randoms((BATCH, 6, 3, 3), (6,), (6,))
    mean, variance = torch.zeros(CLIENTS, 6, dtype=torch.float64), torch.ones(CLIENTS, 6, dtype=torch.float64)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.float64)
    plain = mean.clone(), variance.clone()
    with Stacked(CLIENTS, real):
        together = F.batch_norm(x.flatten(0, 1), mean, variance, weight, bias, training=True).unflatten(
            0, (CLIENTS, BATCH)
        )
    for k, count in enumerate((4, 2, 3)):
        alone = F.batch_norm(x[k, :count], plain[0][k], plain[1][k], weight[k], bias[k], training=True)
        torch.testing.assert_close(together[k, :count], alone)
    torch.testing.assert_close((mean, variance), plain)


def test_weights_that_all_share_and_nobody_trains_are_used_once() -> None:
    x, weight = randoms((BATCH, 6), (5, 6))
    shared = weight[:1].detach().expand(CLIENTS, 5, 6)
    with Stacked(CLIENTS, None):
        together = F.linear(x.flatten(0, 1), shared)
    torch.testing.assert_close(together, F.linear(x.flatten(0, 1), weight[0]))

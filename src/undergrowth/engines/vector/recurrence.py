"""LSTM layers of many clients at once: a loop over positions whose matrix products have the client as first dimension.

With W the weights of the input, U those of the state, and σ the logistic function:

    i, f, g, o = σ, σ, tanh, σ of (x·Wᵀ + h·Uᵀ + biases)        c ← f·c + i·g        h ← o·tanh c
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def run_layers(x: Tensor, start: Sequence[Tensor], weights: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """Outputs of the last layer, and the last states h and c of each layer.

    `x`: clients × positions × samples × inputs. `start`: the first states h and c, clients × layers × samples × units.
    `weights`: for each layer those of the input and of the state, clients × 4 units × inputs, and perhaps two biases.
    """
    hidden, cells = [], []
    for layer, (w, u, *biases) in enumerate(weights):
        bias = sum(biases) if biases else w.new_zeros(w.shape[:2])
        with torch.autocast(x.device.type, enabled=False):  # the loop stays in the precision of the weights
            x, cell = _Recurrence.apply(x.to(w.dtype), w, u, bias, start[0][:, layer], start[1][:, layer])
        hidden.append(x[:, -1])
        cells.append(cell)
    return x, torch.stack(hidden, 1), torch.stack(cells, 1)


class _Recurrence(torch.autograd.Function):
    """One layer. The first states get no gradient: training starts them at zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, u: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        clients, positions, samples, _ = x.shape
        units = u.shape[2]
        gates = torch.baddbmm(bias.unsqueeze(1), x.flatten(1, 2), w.transpose(1, 2))
        gates = gates.view(clients, positions, samples, 4 * units)
        cells = gates.new_empty(clients, positions + 1, samples, units)
        outputs, squashed = torch.empty_like(cells[:, 1:]), torch.empty_like(cells[:, 1:])
        cells[:, 0] = c
        first, transposed = h, u.transpose(1, 2)
        for place in range(positions):
            now = gates[:, place].baddbmm_(h, transposed)
            now[..., : 2 * units].sigmoid_()
            now[..., 2 * units : 3 * units].tanh_()
            now[..., 3 * units :].sigmoid_()
            i, f, g, o = now.chunk(4, -1)
            torch.mul(f, cells[:, place], out=cells[:, place + 1]).addcmul_(i, g)
            torch.tanh(cells[:, place + 1], out=squashed[:, place])
            h = torch.mul(o, squashed[:, place], out=outputs[:, place])
        ctx.save_for_backward(x, w, u, first, gates, cells, outputs, squashed)
        return outputs, cells[:, -1].clone()

    @staticmethod
    def backward(ctx: Any, to_outputs: Tensor, to_cell: Tensor) -> tuple[Tensor | None, ...]:
        x, w, u, first, gates, cells, outputs, squashed = ctx.saved_tensors
        clients, positions, samples, units = outputs.shape
        i, f, g, o = gates.chunk(4, -1)
        # What the gradients of c and h are multiplied by to be those of the sums in the gates, at all positions.
        by_cell = torch.stack([g * i * (1 - i), cells[:, :-1] * f * (1 - f), i * (1 - g * g)], -2)
        by_output = squashed * o * (1 - o)
        output_to_cell = o * (1 - squashed * squashed)
        to_gates = torch.empty_like(gates)
        split = to_gates.view(clients, positions, samples, 4, units)
        dh, dc = torch.zeros_like(outputs[:, 0]), to_cell.clone()
        for place in reversed(range(positions)):
            dh = dh + to_outputs[:, place]
            dc.addcmul_(dh, output_to_cell[:, place])
            torch.mul(by_cell[:, place], dc.unsqueeze(-2), out=split[:, place, :, :3])
            torch.mul(by_output[:, place], dh, out=split[:, place, :, 3])
            dc.mul_(f[:, place])
            dh = torch.bmm(to_gates[:, place], u)
        before = torch.cat([first.unsqueeze(1), outputs[:, :-1]], 1).flatten(1, 2)
        rows = to_gates.flatten(1, 2)
        columns = rows.transpose(1, 2)
        to_x = torch.bmm(rows, w).view(x.shape) if ctx.needs_input_grad[0] else None
        return to_x, torch.bmm(columns, x.flatten(1, 2)), torch.bmm(columns, before), rows.sum(1), None, None

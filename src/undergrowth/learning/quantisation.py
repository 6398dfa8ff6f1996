"""Quantisation: values as whole numbers of one byte, with one scale for each row."""

from __future__ import annotations

from torch import Tensor, int8

_TOP = 127


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes −127 … 127 of one byte, and the scale of each row: its largest magnitude. A row is ``values[i]``.

    A row with a value that is not finite has a scale that is not finite, so that the receiver notices it.
    """
    rows = values.reshape(len(values), -1) if values.dim() else values.reshape(1, 1)
    scales = rows.abs().amax(1)
    relative = rows / scales.where(scales > 0, 1)[:, None]
    return (relative * _TOP).round().nan_to_num(0, 0, 0).to(int8).reshape(values.shape), scales


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """The values of codes and scales from `quantise`."""
    rows = codes.reshape(len(scales), -1).to(scales.dtype) / _TOP
    return (rows * scales[:, None]).reshape(codes.shape)

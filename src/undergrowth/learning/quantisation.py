"""Quantisation: values as whole numbers of one byte, with one scale for each row."""

from __future__ import annotations

from torch import Tensor, int8

_TOP = 127


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes −127 … 127 of one byte for a matrix, and the scale of each row: its largest magnitude.

    A row with a value that is not finite has a scale that is not finite, so that the receiver notices it.
    """
    scales = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    relative = rows / scales.where(scales > 0, 1)[:, None]
    return (relative * _TOP).round().nan_to_num(0, 0, 0).to(int8), scales


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """The matrix of codes and scales from `quantise`."""
    return codes.to(scales.dtype) / _TOP * scales[:, None]

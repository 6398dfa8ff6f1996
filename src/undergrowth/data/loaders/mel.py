"""Mel spectrograms: sound as an image with time on one axis and pitch, on the mel scale, on the other.

The settings are those of BalanceFL (Shuai et al., 2022), which Shi, Sheffield thesis, §3.1, follows: one second at 16
kHz, windows of 1024 samples with a hop of 512, and 32 bands give images of 32×32. The windows are centred at samples 0,
512, …, 15872. At both ends the signal is mirrored.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

RATE = 16_000  # samples per second, and per recording
WINDOW = 1024
HOP = 512
BANDS = 32
DYNAMIC_RANGE = 80.0  # decibels below the maximum of a recording
# Decibels of black and white. BalanceFL adds 9 and divides by 61, which equals these pixels scaled to −1…1.
BLACK, WHITE = -70.0, 52.0


def to_pixels(waves: Tensor) -> np.ndarray:
    """Spectrograms as bytes, N × 1 × 32 × 32, of recordings of one second, N × 16000 with values from −1 to 1."""
    brightness = (decibels(waves) - BLACK) / (WHITE - BLACK)
    return (brightness * 255).round_().clamp_(0, 255).to(torch.uint8).unsqueeze(1).numpy()


def decibels(waves: Tensor) -> Tensor:
    """The power in every band and window, in decibels, N × bands × windows."""
    spectrum = torch.stft(waves, WINDOW, HOP, window=torch.hann_window(WINDOW), center=True, return_complex=True)
    power = filters().T @ spectrum.abs().square_()
    loud = power.clamp_(min=1e-10).log10_().mul_(10)
    return torch.maximum(loud, loud.amax((1, 2), keepdim=True) - DYNAMIC_RANGE)


@cache
def filters() -> Tensor:
    """The weight of each frequency in each band: triangular filters, equally wide on the mel scale."""
    mels = torch.linspace(0, 2595 * float(np.log10(1 + RATE / 2 / 700)), BANDS + 2, dtype=torch.float64)
    corners = 700 * (10 ** (mels / 2595) - 1)
    frequencies = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)[:, None]
    rising = (frequencies - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - frequencies) / (corners[2:] - corners[1:-1])
    return torch.minimum(rising, falling).clamp_(min=0).float()

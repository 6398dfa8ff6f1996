"""Mel spectrograms: sound as a picture, with time across and pitch, spaced as it is heard, upwards.

The settings are those of BalanceFL (Shuai et al., 2022), which Shi, Sheffield thesis, §3.1, follows: a second at 16
kHz, windows of 1024 samples every 512 and 32 bands give pictures of 32×32. Windows have their middles at 0, 512, …:
one at the start, and 31 more, as often as 512 goes into 16000. What they miss at both ends is mirrored.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

RATE = 16_000  # samples a second, and of a recording
WINDOW = 1024
HOP = 512
BANDS = 32
QUIETEST = 80.0  # decibels below the loudest of a recording
# Decibels of black and white. BalanceFL shifts by 9 and divides by 61, which is what pixels scaled to −1…1 are.
DARK, BRIGHT = -70.0, 52.0


def pixels(waves: Tensor) -> np.ndarray:
    """Recordings of a second, N × 16000 with values in −1…1, as pictures of bytes, N × 1 × 32 × 32."""
    shares = (decibels(waves) - DARK) / (BRIGHT - DARK)
    return (shares * 255).round_().clamp_(0, 255).to(torch.uint8).unsqueeze(1).numpy()


def decibels(waves: Tensor) -> Tensor:
    """The power in every band and window, in decibels, N × bands × windows."""
    spectrum = torch.stft(waves, WINDOW, HOP, window=torch.hann_window(WINDOW), center=True, return_complex=True)
    power = filters().T @ spectrum.abs().square_()
    loud = power.clamp_(min=1e-10).log10_().mul_(10)
    return torch.maximum(loud, loud.amax((1, 2), keepdim=True) - QUIETEST)


@cache
def filters() -> Tensor:
    """What each frequency of the transform counts for in each band: triangles, equally wide on the mel scale."""
    mels = torch.linspace(0, 2595 * float(np.log10(1 + RATE / 2 / 700)), BANDS + 2, dtype=torch.float64)
    corners = 700 * (10 ** (mels / 2595) - 1)
    frequencies = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)[:, None]
    rising = (frequencies - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - frequencies) / (corners[2:] - corners[1:-1])
    return torch.minimum(rising, falling).clamp_(min=0).float()

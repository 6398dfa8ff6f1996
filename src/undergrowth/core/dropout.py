"""KeyedDropout: dropout whose random numbers come with the samples, so that every engine drops the same values.

Each visit of a sample has a random key (`Steps.keyed`), and each layer of a model derives its own keys from these
(`layer_keys`). Whether value number j of a sample is kept depends on the key and on j alone. Samples of many clients
can therefore be computed together, in any memory layout, and a step can be recorded on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from undergrowth.core.errors import InputError

NUMBER_OF_KEYS = 1 << 31
LEVELS = 1 << 16  # of a random number: half a word of 32 bits


def signed(number: int) -> int:
    """The lowest 32 bits of a number, as a signed integer of torch."""
    return (number + 2**31) % 2**32 - 2**31


GAMMA, FIRST, SECOND = map(signed, (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35))


def mix(words: Tensor) -> Tensor:
    """The finaliser of MurmurHash3 (Appleby), on signed integers of 32 bits; it overwrites `words`."""
    words = _fold(words, 16).mul_(FIRST)
    words = _fold(words, 13).mul_(SECOND)
    return _fold(words, 16)


def _fold(words: Tensor, bits: int) -> Tensor:
    """words ^ (words >> bits), where the shift fills with zeros."""
    return words.bitwise_xor_((words >> bits).bitwise_and_((1 << (32 - bits)) - 1))


def layer_keys(keys: Tensor, layers: int) -> Tensor:
    """The keys of each of a model's dropout layers, layers × samples, from those of the samples."""
    numbers = torch.arange(1, layers + 1, dtype=torch.int32, device=keys.device)
    return mix(keys + numbers.mul_(GAMMA).unsqueeze(1))


def threshold(p: float) -> int:
    """The smallest random number, of 0 to 65 535, whose value is kept."""
    return round(p * LEVELS)


def drop(x: Tensor, keys: Tensor, p: float) -> Tensor:
    """`x` with a fraction `p` of the values of each sample set to 0, and the others divided by 1 − p.

    An engine may override it, like torch's own layers.
    """
    if has_torch_function((x, keys)):
        taken: Tensor = handle_torch_function(drop, (x, keys), x, keys, p)
        return taken
    return x * kept(keys, x[0].numel(), p).to(x.dtype).mul_(1 / (1 - p)).view(x.shape)


def kept(keys: Tensor, count: int, p: float) -> Tensor:
    """Whether each of `count` values of a sample is kept, samples × values."""
    words = torch.arange((count + 1) // 2, dtype=torch.int32, device=keys.device).mul_(GAMMA)
    numbers = mix(words + keys.unsqueeze(1)).view(torch.int16)  # signed: LEVELS / 2 less than `threshold` counts
    return numbers[:, :count] >= threshold(p) - LEVELS // 2


class KeyedDropout(nn.Module):
    """Dropout with probability `p` in training steps. In other passes, also those in training mode, it does nothing.

    Every place of a model needs its own layer: one that is used twice in a pass drops the same values both times.
    """

    keys: Tensor | None

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise InputError(f"KeyedDropout: p is {p!r}; it must be a probability from 0 to below 1, such as 0.3")
        self.p = p
        self.keys = None  # set while a `Model` runs a step

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.keys, self.p) if self.training and self.keys is not None else x

    def extra_repr(self) -> str:
        return f"p={self.p}"

"""Context: the facts of the moment, and the only source of randomness."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch


class Context(NamedTuple):  # a tuple, because a simulation makes millions of them
    """Who is at work, when. The same context gives the same random numbers on every engine.

    ``round`` is the version of the server that asked; ``turn`` counts how often this node was asked before,
    which tells two jobs apart that an asynchronous server gave to one device within one version.
    """

    seed: int
    node: str
    round: int
    turn: int = 0

    def key(self, purpose: str) -> int:
        """A number that depends on all fields and the purpose, and looks random."""
        text = f"{self.seed}|{self.node}|{self.round}|{self.turn}|{purpose}"
        # 63 bits: torch.Generator takes a signed seed.
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def seed_torch(self, device: torch.device) -> None:
        """From here on torch's own random state there hangs on this context alone: what dropout draws, for one."""
        key = self.key("noise")
        torch.default_generator.manual_seed(key)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(key)

    def generator(self, purpose: str) -> torch.Generator:
        """A fresh CPU generator for one purpose; asking twice gives the same numbers twice."""
        return torch.Generator().manual_seed(self.key(purpose))

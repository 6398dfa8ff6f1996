"""Runs an experiment with very many devices and prints its peak memory in bytes and how many shards were made."""

import json
import sys

import torch

from undergrowth.bench.peak_memory import peak_memory
from undergrowth.core import Shard
from undergrowth.runs.execution import start


class Crowd:
    """A population that makes shards on demand and counts them."""

    name, classes, shape = "crowd", 10, (1, 28, 28)

    def __init__(self, count: int) -> None:
        self.devices = [f"phone-{number}" for number in range(count)]
        self.made = 0

    def train(self, device: str) -> Shard:
        self.made += 1
        return self.samples(int(device[6:]))

    def samples(self, seed: int) -> Shard:
        generator = torch.Generator().manual_seed(seed)
        return Shard(torch.randn(50, 1, 28, 28, generator=generator), torch.arange(50) % 10)

    def test(self, device: str) -> Shard:
        return Shard(torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64))

    def central_test(self) -> Shard:
        return self.samples(0)

    def size(self, device: str) -> int:
        return 50


def main(count: int, out: str, topology: str = "star", sample: float = 10, method: str = "fedavg") -> None:
    """`sample`: devices that are asked, or, below 1, the fraction of the devices of each server."""
    crowd = Crowd(count)
    settings = {
        "method": method,
        "model": "logistic",
        "topology": topology,
        "fleet": {"server_link": "free" if topology == "star" else "wan"},
        "train": {"rounds": 3, "sample": sample / count if sample >= 1 else sample},
        "run": {"out": out, "seed": 1},
    }
    result = start(settings, data=crowd)
    peak = peak_memory()
    asked = sum(row["rounds"] for row in result.clients)
    print(json.dumps({"peak": peak, "made": crowd.made, "asked": asked, "rows": len(result.clients)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4], *map(float, sys.argv[4:5]), *sys.argv[5:])

"""Starts a run with very many devices and prints seconds to the first finished round, peak bytes, shards made."""

import json
import resource
import sys
import time
from pathlib import Path

BEGAN = time.perf_counter()

import torch  # noqa: E402

from undergrowth.core import Shard  # noqa: E402
from undergrowth.runs.execution import start  # noqa: E402


class Crowd:
    """Makes a shard when it is asked for."""

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


def most_memory() -> int:
    """Bytes. On Linux getrusage also counts the process that started this one, and a test may be large."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line[:5] == "VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(count: int, out: str) -> None:
    crowd = Crowd(count)
    first: list[float] = []
    settings = {
        "model": "logistic",
        "train": {"rounds": 3, "sample": 10 / count},
        "run": {"out": out, "seed": 1},
    }
    result = start(settings, data=crowd, on_round=lambda row, execution: first.append(time.perf_counter() - BEGAN))
    peak = most_memory()
    asked = sum(row["rounds"] for row in result.clients)
    print(
        json.dumps({"first": first[0], "peak": peak, "made": crowd.made, "asked": asked, "rows": len(result.clients)})
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

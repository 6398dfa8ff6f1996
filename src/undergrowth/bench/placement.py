"""`undergrowth bench placement`: how near each placement policy comes to the best that is possible, simulated.

Eight workers whose speeds differ fourfold, devices with long-tailed numbers of batches, and times that scatter by a
tenth around a curve that no policy is told. The reference is the lower bound of the times as they turned out, which
nobody could know before. Those that learn must end within 5 % of it; the others only show what learning is worth.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from undergrowth.bench import Measurement
from undergrowth.engines.placement import PLACEMENTS, loads, lower_bound, placement
from undergrowth.engines.prediction import Array

WORKERS = {"fast": (4.0, 2), "medium": (2.0, 2), "slow": (1.0, 4)}  # kind → speed and how many there are
CLIENTS = (1_000, 10_000)
ROUNDS = 10
SCATTER = 0.1
WITHIN = {"lb": 1.05, "lpt": 1.05}
AT_ALL = 4.0  # the others: as much worse as the slowest worker is slower than the fastest


def measure() -> Iterator[Measurement]:
    for clients in CLIENTS:
        for name in PLACEMENTS:
            ours, bound = simulate(name, clients)
            what = f"{name}, {clients} clients a round"
            yield Measurement(what, "simulated seconds", ours, bound, WITHIN.get(name, AT_ALL), lower_is_better=True)


def simulate(name: str, clients: int, rounds: int = ROUNDS, seed: int = 0) -> tuple[float, float]:
    """Mean seconds of a round and of its lower bound, after a first round in which policies may learn."""
    policy = placement(name)
    generator = np.random.default_rng(seed)
    kinds = [kind for kind, (_, count) in WORKERS.items() for _ in range(count)]
    ends, bounds = [], []
    for _ in range(rounds + 1):
        batches, times = drawn(generator, clients, kinds)
        shares = policy.place(batches, kinds)
        for worker, share in enumerate(shares):
            for position in share:
                policy.observe(kinds[worker], batches[position], float(times[worker, position]))
        ends.append(max(loads(shares, times)))
        bounds.append(lower_bound(times))
    return sum(ends[1:]) / rounds, sum(bounds[1:]) / rounds


def drawn(generator: np.random.Generator, clients: int, kinds: list[str]) -> tuple[list[int], Array]:
    """Batches of a round's clients, and the seconds that each takes on each worker."""
    batches = generator.lognormal(np.log(8), 1.1, clients).clip(1, 500).astype(int)
    seconds = (0.05 + 0.02 * batches + 0.03 * np.log(batches)) * generator.lognormal(0, SCATTER, clients)
    speeds = np.array([WORKERS[kind][0] for kind in kinds])
    return batches.tolist(), seconds / speeds[:, None]

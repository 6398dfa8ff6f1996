"""`undergrowth bench placement`: simulated rounds of each placement policy, against the lower bound.

Eight workers have speeds that differ fourfold, devices have long-tailed numbers of batches, and times vary by a tenth
around a curve that the policies do not know. The reference is the lower bound for the times that were drawn. Policies
that learn from earlier rounds must stay within 5 % of it; the others show what learning is worth.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from undergrowth.bench import Measurement
from undergrowth.engines.placement import PLACEMENTS, loads, lower_bound, placement
from undergrowth.engines.prediction import Array

WORKERS = {"fast": (4.0, 2), "medium": (2.0, 2), "slow": (1.0, 4)}  # kind → (speed, number of workers)
CLIENTS = (1_000, 10_000)
ROUNDS = 10
SCATTER = 0.1
MAX_RATIOS = {"lb": 1.05, "lpt": 1.05}
MAX_RATIO = 4.0  # of the other policies: the fastest worker's speed over the slowest's


def measure() -> Iterator[Measurement]:
    for clients in CLIENTS:
        for name in PLACEMENTS:
            ours, bound = simulate(name, clients)
            what = f"{name}, {clients} clients a round"
            yield Measurement(
                what, "simulated seconds", ours, bound, MAX_RATIOS.get(name, MAX_RATIO), lower_is_better=True
            )


def simulate(name: str, clients: int, rounds: int = ROUNDS, seed: int = 0) -> tuple[float, float]:
    """Mean seconds of a round and of its lower bound, after a first round from which policies can learn."""
    policy = placement(name)
    generator = np.random.default_rng(seed)
    kinds = [kind for kind, (_, count) in WORKERS.items() for _ in range(count)]
    ends, bounds = [], []
    for _ in range(rounds + 1):
        batches, times = draw(generator, clients, kinds)
        assigned = policy.place(batches, kinds)
        for worker, positions in enumerate(assigned):
            for position in positions:
                policy.observe(kinds[worker], batches[position], float(times[worker, position]))
        ends.append(max(loads(assigned, times)))
        bounds.append(lower_bound(times))
    return sum(ends[1:]) / rounds, sum(bounds[1:]) / rounds


def draw(generator: np.random.Generator, clients: int, kinds: list[str]) -> tuple[list[int], Array]:
    """The batches of a round's clients, and the seconds of each client on each worker."""
    batches = generator.lognormal(np.log(8), 1.1, clients).clip(1, 500).astype(int)
    seconds = (0.05 + 0.02 * batches + 0.03 * np.log(batches)) * generator.lognormal(0, SCATTER, clients)
    speeds = np.array([WORKERS[kind][0] for kind in kinds])
    return batches.tolist(), seconds / speeds[:, None]

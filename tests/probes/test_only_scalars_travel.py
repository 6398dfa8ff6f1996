"""Probe (a): only seeds go down and scalars come up; every device rebuilds the model by replaying past steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.probes.conftest import POPULATION, Run, accuracy
from undergrowth import core
from undergrowth.core import Context, Packet, Plan, Shard, State, Task, View, Weights

EPSILON, RATE = 1e-3, 0.02


def moved(weights: Weights, seed: float, size: float) -> dict[str, torch.Tensor]:
    """The weights after a step of length `size` along the random direction of `seed`."""
    generator = torch.Generator().manual_seed(int(seed))
    return {k: v + size * torch.randn(v.shape, generator=generator) for k, v in weights.items()}


class Replica(core.Client):
    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        model = own.get("model") or task.model.initial(int(down.scalars["start"]))
        for _, past in sorted(down.parts().items()):  # steps that this device has missed, in order
            model = moved(model, past.scalars["seed"], -RATE * past.scalars["slope"])
        ahead, behind = (
            F.cross_entropy(task.model(moved(model, down.scalars["seed"], side), shard.x), shard.y)
            for side in (EPSILON, -EPSILON)
        )
        slope = Packet(scalars={"slope": float(ahead - behind) / (2 * EPSILON), "samples": float(len(shard))})
        return Packet.join({"slope": slope, "seen": Packet(scalars={"round": down.scalars["round"]})}), {"model": model}


class Seeds(core.Server):
    reducer = core.Named({"slope": core.WeightedMean(), "seen": core.Collect()})

    def init(self, task: Task, context: Context) -> State:
        return {"start": float(context.key("model") >> 15), "past": [], "seen": {}}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        asked = [child for i, child in enumerate(view.idle) if (i + context.round) % 3]  # the others miss this round
        now = {"start": state["start"], "seed": seed_of(context), "round": float(context.round)}
        return Plan({child: Packet(scalars={**now, **self.missed(state, child)}) for child in asked})

    def missed(self, state: State, child: str) -> dict[str, float]:
        past = enumerate(state["past"])
        return {f"{r:05d}/{k}": v for r, step in past if r >= state["seen"].get(child, 0) for k, v in step.items()}

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        step = {"seed": seed_of(context), "slope": combined.part("slope").scalars["slope"]}
        seen = {child: part.scalars["round"] for child, part in combined.part("seen").parts().items()}
        return {**state, "past": [*state["past"], step], "seen": {**state["seen"], **seen}}


def seed_of(context: Context) -> float:
    return float(context.key("direction") >> 15)


class Replay(core.Method):
    client = Replica()
    server = Seeds()


def test_the_model_is_rebuilt_from_a_few_bytes(run: Run) -> None:
    simulation, world = run(Replay(), rounds=120)
    model = world.task.model.initial(int(simulation.root.state["start"]))
    before = accuracy(world.task.model(model, POPULATION.central_test().x))
    for step in simulation.root.state["past"]:
        model = moved(model, step["seed"], -RATE * step["slope"])
    assert accuracy(world.task.model(model, POPULATION.central_test().x)) > before + 0.25
    jobs = sum(1 for r in range(120) for i in range(8) if (i + r) % 3)
    assert simulation.ledger.totals.bytes_up == 8 * 3 * jobs
    assert simulation.ledger.totals.bytes_down < 8 * 8 * jobs  # a whole model would be 2600 bytes each time

"""SCAFFOLD as a user would write it, with devices of equal weight; its numbers are those of the package."""

from dataclasses import dataclass

import torch

from undergrowth.core import Method, Packet, Server, WeightedMean
from undergrowth.learning import CrossEntropy, GradientClient, Objective


@dataclass(frozen=True)
class Drift(Objective):
    """⟨c − c_k, w⟩, whose gradient is what SCAFFOLD adds to every step."""

    def __call__(self, inputs):
        return sum(inputs.total(value * inputs.received[f"drift/{name}"]) for name, value in inputs.trained.items())


@dataclass(frozen=True)
class ControlledClient(GradientClient):
    objective: Objective = CrossEntropy() + Drift()

    def start(self, task, down, own):
        c = down.part("c").tensors
        drift = {f"drift/{name}": c[name] - own.get("c", {}).get(name, 0.0) for name in c}
        return {**down.part("model").tensors, **drift}

    def upload(self, trained):
        before, length = trained.received, trained.lr * trained.steps
        update = {name: (before[name] - trained.tensors[name]) / length for name in trained.task.model.parameters}
        own = {"c": {name: value - before[f"drift/{name}"] for name, value in update.items()}}
        return Packet.join({"model": Packet(trained.tensors), "update": Packet(update)}), own


@dataclass(frozen=True)
class ControlledServer(Server):
    reducer = WeightedMean(weight=None)
    accepts_partial = True

    def init(self, task, context):
        model = task.model.initial(context.key("model"))
        return {"model": model, "c": {name: torch.zeros_like(model[name]) for name in task.model.parameters}}

    def adopt(self, task, state, down, context):
        return {name: part.tensors for name, part in down.parts().items()}

    def plan(self, task, state, view, context):
        return self.ask(task, view, context, Packet.join({name: Packet(state[name]) for name in ("model", "c")}))

    def step(self, task, state, combined, context):
        update, fraction = combined.part("update").tensors, combined.scalars["uploads"] / context.devices
        c = {name: value + fraction * (update[name] - value) for name, value in state["c"].items()}
        return {"model": dict(combined.part("model").tensors), "c": c}


@dataclass(frozen=True)
class OwnScaffold(Method):
    client = ControlledClient()
    server = ControlledServer()

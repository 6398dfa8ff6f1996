"""A method that is not in the package: devices send only the sign of every weight's change (signSGD, majority vote).

Down: w. Up: sign(w_k − w). Server: w ← w + step·sign(Σ_k sign(w_k − w)).
"""

from dataclasses import dataclass

from undergrowth.core import LoopClient, Method, Packet, Server, Sum, option
from undergrowth.learning import GradientClient


@dataclass(frozen=True)
class Signs(LoopClient):
    training: GradientClient = GradientClient()

    def begin(self, task, down, shard, own, context):
        return self.training.begin(task, down, shard, own, context)

    def step(self, task, carry, batch):
        return self.training.step(task, carry, batch)

    def finish(self, task, down, carry, shard, own, context):
        return Packet({k: (v - down.tensors[k]).sign().char() for k, v in carry["parameters"].items()}), own


@dataclass(frozen=True)
class Majority(Server):
    size: float
    reducer = Sum()

    def step(self, task, state, combined, context):
        return {"model": {k: v + self.size * combined.tensors[k].sign() for k, v in state["model"].items()}}


@dataclass(frozen=True)
class SignVote(Method):
    size: float = option(0.02, "step of the server", above=0)
    client = Signs()
    server = property(lambda self: Majority(self.size))

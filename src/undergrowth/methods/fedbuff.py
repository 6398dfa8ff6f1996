"""FedBuff (Nguyen et al. 2022): no rounds; the server steps whenever it has received K changes of any age.

Down: w. A device: E epochs of SGD. Up: Δ_k = w_k − w and n_k. `concurrency` devices are at work at any time; a device
that answers is replaced at once. With K changes in the buffer: w ← w + server_lr·Σ p_k·s(age_k)·Δ_k, where the age is
the number of versions since the device was sent w. The paper gives all devices equal weight (weighting="uniform"); here
p_k = n_k / Σ n by default, so that K = concurrency = all devices, equally fast, is FedAvg. BatchNorm statistics
b are averaged, not added to: b ← b + Σ p_k·s(age_k)·(b_k − b), independent of server_lr. Their changes would move them
away from any batch's: several jobs that began with the first statistics would each subtract these. Counters take the
maximum.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedbuff", options={"buffer": 5, "concurrency": 10}, rounds=4)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import Context, Method, Packet, Plan, Progress, Server, State, Task, View, option
from undergrowth.core.compound_reducers import Named
from undergrowth.core.names import CHANGE, MODEL, SAMPLES
from undergrowth.core.reducers import Reducer, WeightedMean
from undergrowth.learning import GradientClient, Staleness, Trained, model_mismatch


@dataclass(frozen=True)
class FedBuffClient(GradientClient):
    """Sends the change of the model: the server no longer has the version that this device started from."""

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        parameters = trained.task.model.parameters  # statistics and counters of BatchNorm cross as they are
        change = {
            name: value - trained.down.tensors[name] if name in parameters else value
            for name, value in trained.tensors.items()
        }
        count = Packet(scalars={SAMPLES: trained.scalars[SAMPLES]})
        return Packet.join({CHANGE: Packet(change, trained.scalars), "count": count}), trained.own


@dataclass(frozen=True)
class FedBuffServer(Server):
    options: FedBuff
    asynchronous = True
    waits_for_all = False
    ignored_settings = frozenset({"fleet.deadline", "train.over_select", "train.quorum", "train.sample"})

    @property
    def weight(self) -> str | None:
        """The scalar of an upload that it is weighed by."""
        return SAMPLES if self.options.weighting == "samples" else None

    @property
    def reducer(self) -> Reducer:
        change = WeightedMean(self.weight, Staleness(self.options.staleness))
        return Named({CHANGE: change, "count": WeightedMean(self.weight)})

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet(state[MODEL]), self.options.concurrency - len(view.out))

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, up.part(CHANGE))

    def ready(self, progress: Progress) -> bool:
        return progress.arrived >= self.options.buffer

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        change, weight = combined.part(CHANGE), self.weight or "uploads"
        undiscounted = combined.part("count").scalars[weight]
        if not undiscounted:
            return state
        # The mean is over discounted weights; a stale buffer must also make a smaller step.
        discount = change.scalars[weight] / undiscounted
        updated = {}
        for name, value in state[MODEL].items():
            found = change.tensors[name].to(value.dtype)
            if name in task.model.parameters:
                updated[name] = value + self.options.server_lr * discount * found
            elif value.is_floating_point():
                updated[name] = torch.lerp(value, found, discount)
            else:
                updated[name] = torch.maximum(value, found)
        return {**state, MODEL: updated}


@dataclass(frozen=True)
class FedBuff(Method):
    buffer: int = option(5, "changes that make a step", at_least=1)
    concurrency: int = option(10, "devices at work at any time", at_least=1)
    server_lr: float = option(1.0, "step of the server", at_least=0)
    staleness: str = option("polynomial:0.5", "weight of a change by age: constant, polynomial:A or hinge:A:B")
    weighting: str = option("samples", "weight of a change besides its age", choices=("samples", "uniform"))

    client = FedBuffClient()

    def check(self) -> None:
        Staleness(self.staleness)

    @property
    def server(self) -> FedBuffServer:
        return FedBuffServer(self)

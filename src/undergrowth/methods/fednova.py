"""FedNova (Wang et al. 2020): normalised averaging, for devices that do different numbers of steps.

Down: w. A device does τ_k steps of SGD, which change w by −lr·Σ a_j·g_j, a weighted sum of their gradients. Up: the
change per unit of weight, d_k = (w_k − w) / A_k with A_k = Σ a_j, and A_k and n_k. Server: w ← w + τ_eff·Σ p_k·d_k with
p_k = n_k / Σ n and τ_eff = Σ p_k·A_k. Without momentum A_k = τ_k. With momentum m, a gradient is also part of all later
steps: A_k = (τ_k − m·(1 − m^τ_k) / (1 − m)) / (1 − m).

FedAvg, w + Σ p_k·A_k·d_k, favours devices that do more steps. Here a device has the weight p_k in the direction, and
the steps only decide how far the server goes. If all do the same number of steps, it is FedAvg. A device that cannot
finish by the deadline sends what it has, with the τ_k steps that it did.

Departures: none for SGD; other optimisers are refused. Weight decay counts as part of the gradient. The paper's server
momentum is not included. Buffers of BatchNorm are averaged.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fednova", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Context, Method, Packet, Server, State, Task, WeightedMean
from undergrowth.core.names import CHANGE, MODEL
from undergrowth.learning import GradientClient, Trained, model_mismatch, sum_of_weights
from undergrowth.learning.servers import has_no_samples, with_mean_buffers

PREFIX = f"{CHANGE}/"  # of names in uploads: d_k of a parameter
STEPS = "steps"  # scalar of uploads: A_k


@dataclass(frozen=True)
class FedNovaClient(GradientClient):
    """Sends the change of the parameters per unit of weight, and the buffers as they are."""

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        steps = sum_of_weights(trained.optimiser, trained.steps)
        tensors = dict(trained.tensors)
        for name in trained.task.model.parameters:
            # Without a step there is no change, and A_k is 0.
            tensors[PREFIX + name] = (tensors.pop(name) - trained.received[name]) / (steps or 1.0)
        return Packet(tensors, {**trained.scalars, STEPS: steps}), trained.own


@dataclass(frozen=True)
class FedNovaServer(Server):
    reducer = WeightedMean()
    accepts_partial = True

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, Packet({name.removeprefix(PREFIX): value for name, value in up.tensors.items()}))

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if has_no_samples(combined):
            return state
        model = with_mean_buffers(task, state[MODEL], combined)
        for name in task.model.parameters:
            change = combined.scalars[STEPS] * combined.tensors[PREFIX + name]
            model[name] = model[name] + change.to(model[name].dtype)
        return {**state, MODEL: model}


@dataclass(frozen=True)
class FedNova(Method):
    client = FedNovaClient()
    server = FedNovaServer()

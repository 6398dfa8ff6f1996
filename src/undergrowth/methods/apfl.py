"""APFL (Deng et al. 2020): a device uses a mixture of the federated model and of a model of its own.

Every device k keeps v_k and a mixture α_k. Down: w. A device starts from w_k = w and, with the mixed model
m = α_k·v_k + (1 − α_k)·w_k, does on every batch of E epochs

    v_k ← v_k − lr·α_k·∇F(m)        w_k ← w_k − lr·∇F(w_k),

both with the values before the step. α_k·∇F(m) is the gradient of F(m) with respect to v_k. Up: w_k and n_k. Server:
w ← Σ p_k·w_k, p_k = n_k / Σ n, so the federated model is that of FedAvg. A device that is asked for the first time
starts with v_k = w and α_k = `mixture`.

adaptive: the first step of every round also moves the mixture along its gradient, α_k ← α_k − lr·⟨∇F(m), v_k − w_k⟩,
and keeps it in [0, 1].

What is evaluated: a device uses α_k·v_k + (1 − α_k)·w, and its accuracy is in `result.clients`. The run's accuracy is
that of w.

Departures: devices of one round need not have the same number of steps. Momentum and weight decay act on v_k as on w_k.
Buffers of BatchNorm are averaged in w; the mixed model has its own.

    >>> import undergrowth as ug
    >>> result = ug.run(method="apfl", options={"mixture": 0.5, "adaptive": True}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, Context, Method, Packet, Shard, State, Steps, Task, Weights, model_in, option
from undergrowth.core.names import BUFFERS, PARAMETERS, RECEIVED
from undergrowth.learning import AveragingServer, GradientClient
from undergrowth.learning.gradient_client import augmented, gradients_of

MIXTURE = "mixture"  # in carries and own states: α_k


@dataclass(frozen=True, kw_only=True)
class APFLClient(GradientClient):
    """Trains the received model and its own at the same time. own: `parameters` are v_k, `buffers`, `mixture`."""

    options: APFL

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        parameters = carry[PARAMETERS]
        first = next(iter(parameters.values()))
        kept = own or {
            PARAMETERS: parameters,
            BUFFERS: carry[BUFFERS],
            MIXTURE: torch.full((), self.options.mixture, dtype=first.dtype, device=first.device),
        }
        optimiser = self._optimiser(task).init(list(parameters.values()))
        personal = {name: kept[PARAMETERS][name] for name in parameters}  # one order for all devices
        return {
            **carry,
            "personal": {PARAMETERS: personal, BUFFERS: kept[BUFFERS], "optimiser": optimiser},
            MIXTURE: kept[MIXTURE],
        }, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        mixture, personal, received = carry[MIXTURE], carry["personal"], carry[PARAMETERS]
        mixed = mix(received, personal[PARAMETERS], mixture)
        gradients, buffers, _ = gradients_of(
            task, self.objective, mixed, personal[BUFFERS], carry[RECEIVED], augmented(task, batch), self.split
        )
        if self.options.adaptive and "stepped" not in carry:
            slopes = [
                (gradient * (personal[PARAMETERS][name] - received[name])).reshape((*mixture.shape, -1)).sum(-1)
                for name, gradient in zip(mixed, gradients, strict=True)
            ]
            moved = (mixture - carry["lr"] * torch.stack(slopes).sum(0)).clamp(0, 1)
        else:
            moved = mixture
        values, optimiser = self._optimiser(task).update(
            list(personal[PARAMETERS].values()),
            [_along(mixture, gradient) * gradient for gradient in gradients],
            personal["optimiser"],
            carry["lr"],
            "stepped" in carry,
        )
        own = {PARAMETERS: dict(zip(mixed, values, strict=True)), BUFFERS: buffers, "optimiser": optimiser}
        # Last, because it may overwrite the memory of the received parameters.
        return {**super().step(task, carry, batch), "personal": own, MIXTURE: moved}

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        up, _ = super().finish(task, down, carry, shard, own, context)
        personal = carry["personal"]
        return up, {PARAMETERS: personal[PARAMETERS], BUFFERS: personal[BUFFERS], MIXTURE: carry[MIXTURE]}


@dataclass(frozen=True)
class APFL(Method):
    mixture: float = option(0.5, "weight of a device's own model in its mixture, at first", at_least=0, at_most=1)
    adaptive: bool = option(False, "devices learn their mixture")

    server = AveragingServer()

    @property
    def client(self) -> APFLClient:
        return APFLClient(options=self)

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        model = model_in(state)
        if not own:
            return model
        return {**model, **own[BUFFERS], **mix(model, own[PARAMETERS], own[MIXTURE])}


def mix(federated: Weights, personal: Mapping[str, Tensor], mixture: Tensor) -> dict[str, Tensor]:
    """α·v + (1 − α)·w for every parameter in v."""
    return {
        name: torch.lerp(federated[name], value, _along(mixture, value).to(value.dtype))
        for name, value in personal.items()
    }


def _along(mixture: Tensor, value: Tensor) -> Tensor:
    """The mixture in a shape that multiplies a parameter, also of stacked clients with a mixture each."""
    return mixture.reshape((*mixture.shape, *(1,) * (value.dim() - mixture.dim())))

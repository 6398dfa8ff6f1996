"""DistMeZO (the naive way to distribute MeZO): every device descends along directions of its own, weights are averaged.

Down: w. A device: E epochs of batches. In a step, for each of P random directions z_p that only this device draws,
g_p = (L(w_k + ε·z_p) − L(w_k − ε·z_p)) / 2ε on the batch; then w_k ← w_k − step_size·(1/P)·Σ g_p·z_p. Up: w_k and n_k.
Server: w ← Σ p_k·w_k, p_k = n_k / Σ n. It is the baseline of FedMeZO: as many bytes as FedAvg, and steps in directions
that differ between devices partly cancel in the mean.

A device needs the memory of inference: it perturbs the model in place. Dropout is off, and BatchNorm uses the
statistics of the first model, which do not change. The settings of gradient descent are not used; `step_size` replaces
`train.lr`, and `train.schedule` applies to it.

    >>> import undergrowth as ug
    >>> result = ug.run(method="distmezo", model="logistic", options={"step_size": 0.03}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from undergrowth.core import AllSelector, Batch, Carry, Context, LoopClient, Method, Packet, Shard, State, Steps, Task
from undergrowth.core.names import BUFFERS, LOSS, PARAMETERS, SAMPLES, STEPS_DONE, WEIGHT
from undergrowth.learning import AveragingServer
from undergrowth.learning.directions import derive
from undergrowth.learning.gradient_client import shuffled_steps
from undergrowth.learning.zeroth_order import (
    IGNORED_SETTINGS,
    ZerothOrderOptions,
    batch_sizes,
    direction,
    loss_sum,
    private_copy,
    shift,
)


@dataclass(frozen=True)
class DistMeZOClient(LoopClient):
    options: ZerothOrderOptions
    in_place: bool = False  # as a real device does; in a simulation, devices share tensors

    @property
    def ignored_settings(self) -> frozenset[str]:
        return IGNORED_SETTINGS

    def on_device(self) -> DistMeZOClient:
        return replace(self, in_place=True)

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        train, weights = task.train, down.tensors
        steps = shuffled_steps(
            task, weights, shard, AllSelector(), train.epochs, train.batch, context.generator("order")
        )
        carry: Carry = {
            PARAMETERS: {name: weights[name] for name in task.model.parameters},
            BUFFERS: {name: weights[name] for name in task.model.buffers},
            "key": torch.tensor(context.key("directions"), device=shard.x.device),
            "lr": self.options.rate(task, context.round),
            LOSS: torch.zeros((), dtype=torch.float64, device=shard.x.device),
        }
        return carry, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        options, parameters, key = self.options, carry[PARAMETERS], derive(carry["key"], 0)
        if "stepped" not in carry and not self.in_place:
            parameters = private_copy(parameters, key)
        weights, clients = {**parameters, **carry[BUFFERS]}, len(key) if WEIGHT in batch else None
        forward, backward, back = options.walk
        losses = []
        for number in range(options.directions):
            along = direction(key, number)
            for scale in (forward, backward):
                shift(parameters, along, [scale])
                losses.append(loss_sum(task, weights, batch, clients) / batch_sizes(batch, clients))
            shift(parameters, along, [back])
        found = torch.stack(losses, -1)
        options.descend(parameters, key, options.slopes(found[..., 0::2], found[..., 1::2]), carry["lr"])
        return {**carry, PARAMETERS: parameters, "key": key, "stepped": True, LOSS: carry[LOSS] + found.mean(-1)}

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        scalars = {SAMPLES: float(len(shard))}
        if task.sampler.needs_loss:
            scalars[LOSS] = float(carry[LOSS] / max(1, carry[STEPS_DONE]))
        return Packet(carry[PARAMETERS], scalars), own


@dataclass(frozen=True)
class DistMeZO(ZerothOrderOptions, Method):
    server = AveragingServer()

    @property
    def client(self) -> DistMeZOClient:
        return DistMeZOClient(self)

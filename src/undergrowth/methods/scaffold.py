"""SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of devices whose data differ.

The server keeps c, an estimate of the gradient over all devices, and every device k keeps c_k, an estimate of its own;
both start at 0. Down: w and c. A device: K steps w_k ← w_k − lr·(g − c_k + c), where g is the gradient of a batch. Then
(option II of the paper) u_k = (w − w_k) / (K·lr) and c_k ← c_k − c + u_k. Up: w_k and u_k, twice the bytes of FedAvg.
Server: w ← w + server_lr·mean(w_k − w) and c ← c + fraction·mean(u_k − c), over the devices that answered. u_k − c is
the change of c_k that the paper sends.

In the paper devices have equal weight in both means, and the fraction is their number divided by that of all devices
(weighting="uniform"). By default the weight is the number of samples here, and the fraction is the samples of these
devices divided by those of all, so that the same loss is minimised as by FedAvg. Either way c is the mean of all c_k.

A device that cannot finish by the deadline sends what it has: K is the number of steps that it did. A device that did
none leaves c_k as it is.

Departures: the weights; and with momentum K is replaced by the sum of the weights that the gradients have in w − w_k
(as in FedNova), so that u_k is a mean of gradients. K would make it up to 1 / (1 − momentum) times too long. Other
optimisers than sgd are refused. Buffers of BatchNorm are averaged.

    >>> import undergrowth as ug
    >>> result = ug.run(method="scaffold", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from undergrowth.core import Context, Method, Packet, Plan, State, Task, View, WeightedMean, Weights, option
from undergrowth.core.names import MODEL, SAMPLES
from undergrowth.learning import (
    AveragingServer,
    GradientClient,
    Linear,
    TaskLoss,
    Trained,
    model_mismatch,
    sum_of_weights,
    with_slope,
)
from undergrowth.learning.servers import has_no_samples

CONTROL = "control"  # part of packets: c on the way down, u_k on the way up; in states: c and c_k


@dataclass(frozen=True)
class ScaffoldClient(GradientClient):
    """Trains with c − c_k as the slope of the loss. own: `control` is c_k."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        slope = dict(down.part(CONTROL).tensors)
        if CONTROL in own:
            slope = {name: value - own[CONTROL][name] for name, value in slope.items()}
        return with_slope(down.part(MODEL).tensors, slope)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        received, control, own = trained.received, trained.down.part(CONTROL).tensors, trained.own
        length = trained.lr * sum_of_weights(trained.optimiser, trained.steps)
        if length:
            control = {name: (received[name] - trained.tensors[name]) / length for name in control}
            own = {CONTROL: {name: value - received[f"slope/{name}"] for name, value in control.items()}}
        packet = Packet.join({MODEL: Packet(trained.tensors), CONTROL: Packet(control)})
        # All samples count, also those that a selector left out: c is the mean over all devices.
        samples = float(len(trained.shard) if trained.steps else 0)
        return replace(packet, scalars={**trained.scalars, SAMPLES: samples}), own


@dataclass(frozen=True, kw_only=True)
class ScaffoldServer(AveragingServer):
    """state: `control` is c."""

    options: Scaffold

    def init(self, task: Task, context: Context) -> State:
        state = super().init(task, context)
        return {**state, CONTROL: {name: torch.zeros_like(state[MODEL][name]) for name in task.model.parameters}}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {part: dict(packet.tensors) for part, packet in down.parts().items()}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet.join({part: Packet(state[part]) for part in (MODEL, CONTROL)}))

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, up.part(MODEL)) or model_mismatch(task, up.part(CONTROL))

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if has_no_samples(combined):
            return state
        if self.options.weighting == SAMPLES:
            fraction = combined.scalars[SAMPLES] / context.samples
        else:
            fraction = combined.scalars["uploads"] / context.devices
        mean = combined.part(CONTROL).tensors
        control = {
            name: torch.lerp(c, mean[name].to(c.dtype), min(fraction, 1.0)) for name, c in state[CONTROL].items()
        }
        return {**super().step(task, state, combined.part(MODEL), context), CONTROL: control}


@dataclass(frozen=True)
class Scaffold(Method):
    server_lr: float = option(1.0, "step of the server towards the mean", at_least=0)
    weighting: str = option(SAMPLES, "weight of a device", choices=(SAMPLES, "uniform"))

    client = ScaffoldClient(TaskLoss() + Linear())

    @property
    def server(self) -> ScaffoldServer:
        reducer = WeightedMean(SAMPLES if self.weighting == SAMPLES else None)
        return ScaffoldServer(lr=self.server_lr, reducer=reducer, accepts_partial=True, options=self)

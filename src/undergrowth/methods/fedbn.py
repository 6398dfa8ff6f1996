"""FedBN (Li et al. 2021): normalisation layers stay on the devices, all other layers are averaged.

w = {s, b}: b are the weights and buffers of all normalisation layers (batch, instance, group, layer and RMS norm), s is
the rest. Down: s. A device: E epochs of SGD from {s, b_k}, where b_k is its own. Up: s_k and n_k; it keeps b_k. Server:
s ← Σ p_k·s_k, p_k = n_k / Σ n. b never crosses a link. A device that is asked for the first time starts from the b of
the run's initial model, which it makes from a seed that is sent with s.

What is evaluated: a device uses {s, b_k}. Its accuracy on its own test samples, in `result.clients`, is the paper's
figure. The server has no b, so the run's accuracy is that of {s, mean of b_k}, weighted by samples, over the devices
that have taken part: a model for a device from outside. Only a simulation can make it, because no server sees the b_k.

A model without normalisation layers is averaged as by FedAvg, and the run notes it.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedbn", model="resnet-8", rounds=2)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from undergrowth.core import Context, Method, Model, Packet, Plan, State, Task, View, WeightedMean, Weights, add_upload
from undergrowth.core.names import MODEL, SAMPLES, SEED
from undergrowth.learning import AveragingServer, GradientClient, Trained

NORMALISATION = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
    nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm,
)  # fmt: skip


def own_names(model: Model) -> set[str]:
    """Names of the weights and buffers of all normalisation layers."""
    layers = [name for name, layer in model.module.named_modules() if isinstance(layer, NORMALISATION)]
    prefixes = tuple(f"{name}." if name else "" for name in layers)
    return {name for name in model.shapes if name.startswith(prefixes)}


@dataclass(frozen=True)
class FedBNClient(GradientClient):
    """Trains the received layers with its own normalisation layers. own: `layers` are these, and `samples`."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        weights = {**(own.get("layers") or task.model.initial(int(down.scalars[SEED]))), **down.tensors}
        return {name: weights[name] for name in task.model.shapes}  # one order for all devices

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        kept = own_names(trained.task.model)
        layers = {name: value for name, value in trained.tensors.items() if name in kept}
        sent = {name: value for name, value in trained.tensors.items() if name not in kept}
        own = {"layers": layers, SAMPLES: trained.samples} if layers and trained.samples else trained.own
        return Packet(sent, trained.scalars), own


@dataclass(frozen=True)
class FedBNServer(AveragingServer):
    """Sends everything but the normalisation layers. state: `seed` is that of the initial model."""

    def init(self, task: Task, context: Context) -> State:
        seed = float(context.key("model") >> 15)  # 48 bits: exact as a float
        return {MODEL: task.model.initial(int(seed)), SEED: seed}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: dict(down.tensors), SEED: down.scalars[SEED]}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        kept = own_names(task.model)
        shared = {name: value for name, value in state[MODEL].items() if name not in kept}
        return self.ask(task, view, context, Packet(shared, {SEED: state[SEED]}))


@dataclass(frozen=True)
class FedBN(Method):
    client = FedBNClient()
    server = FedBNServer()

    def notes(self, task: Task) -> Sequence[str]:
        if own_names(task.model):
            return ()
        return ["fedbn: the model has no normalisation layers, so every layer is averaged, as by fedavg"]

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        return {"global": {**state[MODEL], **_mean_layers(own[device] for device in sorted(own))}}

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return {**state[MODEL], **own.get("layers", {})}


def _mean_layers(states: Iterable[State]) -> Mapping[str, Tensor]:
    """The mean of the devices' normalisation layers; nothing if no device has any."""
    mean: Packet | None = None
    for number, own in enumerate(states):
        mean = add_upload(WeightedMean(), mean, str(number), Packet(own["layers"], {SAMPLES: float(own[SAMPLES])}))
    return {} if mean is None else mean.tensors

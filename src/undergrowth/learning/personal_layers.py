"""Personal layers: some layers of a model stay on the devices, the others are averaged.

The client, the server and the method have a function `kept`, which returns the names of the layers that stay. These
never cross a link. A device that is asked for the first time starts with those of the run's initial model, which it
makes from a seed that is sent with the other layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from torch import Tensor

from undergrowth.core import Context, Method, Model, Packet, Plan, State, Task, View, Weights
from undergrowth.core.names import MODEL, SAMPLES, SEED
from undergrowth.learning.gradient_client import GradientClient, Trained
from undergrowth.learning.servers import AveragingServer, mean_of_models

LAYERS = "layers"  # entry of a device's own state: its personal layers
LayerNames = Callable[[Model], Set[str]]  # names of the weights and buffers that stay on the devices


@dataclass(frozen=True, kw_only=True)
class PersonalLayersClient(GradientClient):
    """Trains the received layers with its own ones. own: `layers` are these, and `samples`."""

    kept: LayerNames

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        weights = {**(own.get(LAYERS) or task.model.initial(int(down.scalars[SEED]))), **down.tensors}
        return {name: weights[name] for name in task.model.shapes}  # one order for all devices

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        kept = self.kept(trained.task.model)
        layers = {name: value for name, value in trained.tensors.items() if name in kept}
        sent = {name: value for name, value in trained.tensors.items() if name not in kept}
        own = {LAYERS: layers, SAMPLES: trained.samples} if layers and trained.samples else trained.own
        return Packet(sent, trained.scalars), own


@dataclass(frozen=True, kw_only=True)
class PersonalLayersServer(AveragingServer):
    """Sends everything but the personal layers. state: `seed` is that of the initial model."""

    kept: LayerNames

    def init(self, task: Task, context: Context) -> State:
        return {**super().init(task, context), SEED: context.key("model")}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: dict(down.tensors), SEED: down.scalars[SEED]}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        kept = self.kept(task.model)
        shared = {name: value for name, value in state[MODEL].items() if name not in kept}
        return self.ask(task, view, context, Packet(shared, {SEED: state[SEED]}))


@dataclass(frozen=True)
class PersonalLayersMethod(Method):
    """The base of methods with such a client and such a server.

    A device uses the shared layers with its own ones. The server has no personal layers, so the run's accuracy is that
    of the shared layers with the mean of the devices' own, weighted by samples, over those that have taken part: a
    model for a device from outside. Only a simulation can make it, because no server sees the layers of a device.
    """

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        return {"global": {**state[MODEL], **_mean_layers(own[device] for device in sorted(own))}}

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return {**state[MODEL], **own.get(LAYERS, {})}


def _mean_layers(states: Iterable[State]) -> Mapping[str, Tensor]:
    """The mean of the devices' own layers; nothing if no device has any."""
    mean = mean_of_models((own[LAYERS], float(own[SAMPLES])) for own in states)
    return {} if mean is None else mean.tensors

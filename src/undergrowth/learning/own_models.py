"""OwnModelsServer: a server that holds a model for every device, trains it and sends it.

The reducer keeps uploads separate, so the root knows which device sent what. An edge server passes uploads on under its
own name, from which the root learns the path to each device: the packet for an edge server holds the models of all
devices below it. A device that has not answered yet starts with initial weights that both ends make from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from torch import Tensor

from undergrowth.core import Collect, Context, ModelWeights, Packet, Plan, Server, State, Task, View, Weights
from undergrowth.core.names import EPOCHS, MODEL, MODEL_NAME, RUNG, SEED
from undergrowth.learning.ladder import assign_models, fit, ladder_names
from undergrowth.learning.planning import ask_each
from undergrowth.learning.servers import model_mismatch
from undergrowth.learning.servers import uploaded_weights as uploaded_weights  # for the methods of this server


@dataclass(frozen=True)
class OwnModelsServer(Server):
    """A method defines `teach`.

    state: `devices` has for each device the name of its `model`, its `weights`, and its `way` (the nodes in between).
    """

    reducer = Collect(by_path=True)

    @property
    def pretrain_epochs(self) -> int:
        """Epochs that all devices train in the first round, without a deadline; 0: the run's epochs and deadline."""
        return 0

    @property
    def shared_start(self) -> bool:
        """Whether devices' models start with the first weights of the global model, wherever names and shapes agree."""
        return False

    def teach(
        self, task: Task, model: Weights, uploads: Mapping[str, Packet], context: Context
    ) -> tuple[Weights, Mapping[str, Weights]]:
        """The next global model, and the next models of the devices in `uploads`."""
        raise NotImplementedError(f"{type(self).__name__} does not define teach")

    def init(self, task: Task, context: Context) -> State:
        seed = context.float_key("device models")
        model = {MODEL: task.model.initial(int(seed))} if self.shared_start else super().init(task, context)
        return {**model, SEED: seed, EPOCHS: self.pretrain_epochs, "devices": {}}

    def steady_state(self, task: Task, state: State) -> State:
        return {**state, EPOCHS: 0}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        devices = {
            path.rpartition("/")[2]: _device_state(task, path, sent, sent.tensors)
            for path, sent in uploads_by_path(down).items()
        }
        return {SEED: down.scalars[SEED], EPOCHS: down.scalars[EPOCHS], "devices": devices}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        held, seed, epochs = state["devices"], state[SEED], state[EPOCHS]

        @cache
        def initial(name: str) -> Packet:
            return Packet(first_weights(task, name, int(seed), self.shared_start), tags={MODEL_NAME: name})

        @cache
        def pretraining(name: str) -> Packet:
            return replace(initial(name), scalars={EPOCHS: float(epochs)})

        packets: dict[str, Packet] = {}
        for device, name in assign_models(task, view, initial).items():
            known = device in held and held[device]["model"] == name
            first = pretraining(name) if epochs else initial(name)
            packets[device] = Packet(held[device]["weights"], tags={MODEL_NAME: name}) if known else first
        for node in view.nodes.intersection(view.idle):
            below = {
                "/".join([*kept["way"].split("/")[1:], device]): _packet_of(task, kept)
                for device, kept in held.items()
                if kept["way"].split("/")[0] == node
            }
            joined = Packet.join(below)
            packets[node] = replace(joined, scalars={**joined.scalars, SEED: seed, EPOCHS: float(epochs)})
        return ask_each(self, task, view, context, packets, everybody=epochs > 0)

    def check(self, task: Task, up: Packet) -> str | None:
        rung, names = up.scalars.get(RUNG, -1.0), ladder_names(task)
        if rung not in range(len(names)):
            return f"its model is number {rung:g} of {len(names)}"
        return model_mismatch(task.of_device(names[int(rung)]), Packet(uploaded_weights(up)))

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        uploads = uploads_by_path(combined)
        model, taught = self.teach(task, state[MODEL], uploads, context)
        devices = {
            path.rpartition("/")[2]: _device_state(task, path, uploads[path], weights)
            for path, weights in taught.items()
        }
        return {**state, MODEL: model, EPOCHS: 0, "devices": {**state["devices"], **devices}}


def first_weights(task: Task, name: str, seed: int, shared: bool) -> dict[str, Tensor]:
    """The weights with which a device's model starts; `shared`: see `OwnModelsServer.shared_start`."""
    own = task.of_device(name).model.initial(seed)
    of_server = task.model.initial(seed) if shared else {}
    return {
        each: of_server[each] if each in of_server and of_server[each].shape == value.shape else value
        for each, value in own.items()
    }


def uploads_by_path(packet: Packet, above: str = "") -> dict[str, Packet]:
    """The part of each device in a packet, by its path: ``device`` directly below the server, or ``edge/device``."""
    found: dict[str, Packet] = {}
    for name, part in sorted(packet.parts().items()):
        found.update({f"{above}{name}": part} if RUNG in part.scalars else uploads_by_path(part, f"{above}{name}/"))
    return found


def by_model(task: Task, uploads: Mapping[str, Packet]) -> list[tuple[Task, dict[str, Weights]]]:
    """The uploaded weights of the devices that have the same model of the ladder, with the task of that model."""
    groups: dict[float, dict[str, Packet]] = {}
    for path, up in uploads.items():
        groups.setdefault(up.scalars[RUNG], {})[path] = up
    return [
        (sender_task(task, next(iter(ups.values()))), {path: uploaded_weights(up) for path, up in ups.items()})
        for _, ups in sorted(groups.items())
    ]


def sender_task(task: Task, up: Packet) -> Task:
    """The task with the model of the device that sent `up`."""
    return task.of_device(ladder_names(task)[int(up.scalars[RUNG])])


def all_models(task: Task, state: State) -> dict[str, Weights | ModelWeights]:
    """The global model and those of the devices, for `Method.models`."""
    devices = {
        f"devices/{device}": fit(task, kept["model"], kept["weights"]) for device, kept in state["devices"].items()
    }
    return {"global": state[MODEL], **devices}


def _device_state(task: Task, path: str, sent: Packet, weights: Weights) -> State:
    name = ladder_names(task)[int(sent.scalars[RUNG])]
    return {"model": name, "way": path.rpartition("/")[0], "weights": dict(weights)}


def _packet_of(task: Task, kept: State) -> Packet:
    return Packet(kept["weights"], {RUNG: float(ladder_names(task).index(kept["model"]))})

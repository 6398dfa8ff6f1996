"""OwnModels: a server that holds a model for every device, teaches it and sends it.

Uploads are kept apart, so the root sees who sent what. An edge server passes them on under its own name; that is how
the root knows which way a device's model has to go: the packet for an edge server holds the models of all below it.
A device that has not answered yet starts with fresh weights of its model, which both ends can make from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from undergrowth.core import Collect, Context, Fitted, Packet, Plan, Server, State, Task, View, Weights
from undergrowth.learning.ladder import MODEL, RUNG, ask_each, fitted, on_rung, rungs, rungs_of
from undergrowth.learning.servers import unlike_model


@dataclass(frozen=True)
class OwnModels(Server):
    """What it does with the uploads, `teach` says.

    pretrain_epochs: in the first round all devices train so many epochs instead of the run's, without a deadline.
    state: `devices` has for each device its model's name, its weights, and the way to it (the nodes in between).
    """

    pretrain_epochs: int = 0
    reducer = Collect(by_path=True)

    def teach(
        self, task: Task, model: Weights, uploads: Mapping[str, Packet], context: Context
    ) -> tuple[Weights, Mapping[str, Weights]]:
        """The global model, and the models of those who sent something, after a round."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it teaches")

    def init(self, task: Task, context: Context) -> State:
        seed = float(context.key("device models") >> 15)  # 48 bits: exact as a float
        return {**super().init(task, context), "seed": seed, "epochs": self.pretrain_epochs, "devices": {}}

    def steady_state(self, task: Task, state: State) -> State:
        return {**state, "epochs": 0}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        held = {path: _kept(task, path, sent, sent.tensors) for path, sent in by_path(down).items()}
        numbers = {name: down.scalars[name] for name in ("seed", "epochs")}
        return {**numbers, "devices": {path.rpartition("/")[2]: kept for path, kept in held.items()}}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        held, seed, epochs = state["devices"], state["seed"], state["epochs"]

        @cache
        def fresh(name: str) -> Packet:
            return Packet(on_rung(task, name).model.initial(int(seed)), tags={MODEL: name})

        @cache
        def longer(name: str) -> Packet:
            return replace(fresh(name), scalars={"epochs": float(epochs)})

        packets: dict[str, Packet] = {}
        for device, name in rungs_of(task, view, fresh).items():
            known = device in held and held[device][MODEL] == name
            first = longer(name) if epochs else fresh(name)
            packets[device] = Packet(held[device]["weights"], tags={MODEL: name}) if known else first
        for node in view.nodes.intersection(view.idle):
            below = {
                "/".join([*kept["way"].split("/")[1:], device]): _sent(task, kept)
                for device, kept in held.items()
                if kept["way"].split("/")[0] == node
            }
            joined = Packet.join(below)
            packets[node] = replace(joined, scalars={**joined.scalars, "seed": seed, "epochs": float(epochs)})
        return ask_each(self, task, view, context, packets, everybody=epochs > 0)

    def check(self, task: Task, up: Packet) -> str | None:
        rung = up.scalars.get(RUNG, -1.0)
        if rung not in range(len(rungs(task))):
            return f"its model is number {rung:g} of {len(rungs(task))}"
        return unlike_model(on_rung(task, rungs(task)[int(rung)]), Packet(weights_of(up)))

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        uploads = by_path(total)
        model, taught = self.teach(task, state["model"], uploads, context)
        devices = {
            path.rpartition("/")[2]: _kept(task, path, uploads[path], weights) for path, weights in taught.items()
        }
        return {**state, "model": model, "epochs": 0, "devices": {**state["devices"], **devices}}


def by_path(packet: Packet, above: str = "") -> dict[str, Packet]:
    """What each device sent or is sent, by the way to it: ``device`` below the server itself, ``edge/device``, …"""
    found: dict[str, Packet] = {}
    for name, part in sorted(packet.parts().items()):
        found.update({f"{above}{name}": part} if RUNG in part.scalars else by_path(part, f"{above}{name}/"))
    return found


def weights_of(up: Packet) -> Weights:
    """The model in an upload: what has no prefix."""
    return {name: value for name, value in up.tensors.items() if "/" not in name}


def seen_by(task: Task, up: Packet) -> Task:
    """The task of the device that sent this."""
    return on_rung(task, rungs(task)[int(up.scalars[RUNG])])


def all_models(task: Task, state: State) -> dict[str, Weights | Fitted]:
    """The global model, and those of the devices, for evaluation."""
    devices = {
        f"devices/{device}": fitted(task, kept[MODEL], kept["weights"]) for device, kept in state["devices"].items()
    }
    return {"global": state["model"], **devices}


def _kept(task: Task, path: str, sent: Packet, weights: Weights) -> State:
    name = rungs(task)[int(sent.scalars[RUNG])]
    return {MODEL: name, "way": path.rpartition("/")[0], "weights": dict(weights)}


def _sent(task: Task, kept: State) -> Packet:
    return Packet(kept["weights"], {RUNG: float(rungs(task).index(kept[MODEL]))})

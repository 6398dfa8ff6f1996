"""Few-shot updates: devices train the classifier on a few samples of every class, the server makes a model of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import (
    Context,
    LoopClient,
    Named,
    Packet,
    Plan,
    Reducer,
    State,
    Task,
    Updates,
    View,
    WeightedMean,
)  # fmt: skip
from undergrowth.learning.gradient_client import GradientClient
from undergrowth.learning.objectives import Look, Objective
from undergrowth.learning.servers import Averaging, unlike_model
from undergrowth.learning.stragglers import Stragglers

FULL, FEW_SHOT = "full", "few-shot"  # the updates, and the parts of a total
ANCHOR = "anchor"  # the part of a packet with the classifier that the full update is pulled towards
UPDATES = "updates"  # the tag that names the updates a packet asks for; without it, the full one
DUE = "due"  # in the state: few-shot updates need not wait for the second round
WITHOUT_DEADLINE = 0.5  # share of the devices that do full updates where nothing tells who is slow


@dataclass(frozen=True)
class Pull(Objective):
    """μ·‖θ − anchor‖² over the part above `split`. The anchor is the received θ, or what came as ``anchor/NAME``."""

    mu: float
    split: str
    received: bool = False

    def __call__(self, look: Look) -> Tensor:
        names = {name: name if self.received else f"{ANCHOR}/{name}" for name in look.task.model.trainable(self.split)}
        pairs = [(look.trained[name], look.received[at]) for name, at in names.items() if at in look.received]
        if not pairs:  # there is no few-shot classifier before the second round has ended
            return torch.zeros((), device=look.output.logits.device)
        return self.mu * torch.stack([look.total((value - anchor).pow(2)) for value, anchor in pairs]).sum(0)


@dataclass(frozen=True)
class FewShotClient(GradientClient):
    """Sends how the classifier changed: a codec that leaves out values leaves the received ones then."""

    def send(self, task: Task, down: Packet, trained: Packet, own: State) -> tuple[Packet, State]:
        change = {name: value - down.tensors[name] for name, value in trained.tensors.items()}
        said = Packet(scalars=trained.scalars)
        alone = FULL not in asked_of(down)  # then these numbers are all that the server hears of the device
        sent = Packet.join({FEW_SHOT: Packet(change) if alone else replace(said, tensors=change)})
        return replace(sent, scalars=said.scalars) if alone else sent, own


@dataclass(frozen=True)
class FullAndFewShot(Updates):
    """Does those of the two updates that the packet asks for."""

    full: GradientClient
    few_shot: FewShotClient

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        return {name: self.full if name == FULL else self.few_shot for name in asked_of(down)}


def asked_of(down: Packet) -> list[str]:
    return down.tags.get(UPDATES, FULL).split("+")


@dataclass(frozen=True)
class WholeAndParts(Named):
    """Reduces parts in their own ways; tensors without a prefix, whose names links know, are the part `full`."""

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        tensors = {name if "/" in name else f"{FULL}/{name}": value for name, value in up.tensors.items()}
        return super().lift(sender, replace(up, tensors=tensors), age)


@dataclass(frozen=True)
class FewShotServer(Averaging):
    """Averages full updates by their samples, and few-shot classifiers alike; both start from the same base model.

    state: `model` is the base model; `global` the few-shot classifier on the lower part that it was trained on.
    """

    reducer: Reducer = WholeAndParts({FULL: WeightedMean(), FEW_SHOT: WeightedMean(None)})
    split: str = "head"
    few_shot: bool = True  # False: nobody does few-shot updates
    everybody: bool = False  # who does a full update does a few-shot update too; else the stragglers do it
    anchored: bool = False  # devices are sent the last few-shot classifier
    rule: Stragglers = Stragglers()

    def steady_state(self, task: Task, state: State) -> State:
        names = (*task.model.trainable(self.split), *task.model.upper_buffers(self.split))
        anchor = {name: state["model"][name] for name in names} if self.anchored else {}
        return {**state, DUE: True, ANCHOR: anchor}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        model = {name: value for name, value in down.tensors.items() if "/" not in name}
        return {**state, "model": model, ANCHOR: dict(down.part(ANCHOR).tensors)}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        few_shot = self.few_shot and (context.round > 0 or state.get(DUE, False))
        reduced, rule = self.rule.epochs > 0, self.rule
        full = [FULL, FEW_SHOT] if few_shot and self.everybody else [FULL]
        light = [FULL] * reduced + [FEW_SHOT] * (few_shot and (reduced or not self.everybody))
        packets: dict[tuple[str, int], Packet] = {}

        def packet(updates: list[str], epochs: int = 0) -> Packet:
            key = ("+".join(updates), epochs)
            if key not in packets:
                anchor = state.get(ANCHOR, {}) if FULL in updates else {}  # a few-shot update has no use for it
                tensors = {**state["model"], **{f"{ANCHOR}/{name}": value for name, value in anchor.items()}}
                tags = {} if updates == [FULL] else {UPDATES: key[0]}
                packets[key] = Packet(tensors, {"epochs": float(epochs)} if epochs else {}, tags)
            return packets[key]

        def lighter(device: str) -> Packet:
            return packet(light, rule.epochs_of(device, task, context) if reduced else 0)

        told = rule.f_n is not None or task.train.deadline is not None
        if self.everybody and rule.f_n is None and not reduced:
            return self.ask(task, view, context, packet(full))  # who is late is dropped
        if self.few_shot and not self.everybody and not told:
            rule = replace(rule, f_n=WITHOUT_DEADLINE, f_fs=1 - WITHOUT_DEADLINE)
        return rule.plan(self, task, view, context, packet(full), lighter if light else None)

    def check(self, task: Task, up: Packet) -> str | None:
        few_shot = up.part(FEW_SHOT)
        whole = replace(up, tensors={name: value for name, value in up.tensors.items() if "/" not in name})
        upper = {*task.model.trainable(self.split), *task.model.upper_buffers(self.split)}
        lower = next((name for name in few_shot.tensors if name not in upper), None)
        if lower is not None:
            return f"'{lower}' is not a tensor above the split '{self.split}'"
        sent = [part for part in (whole, few_shot) if part.tensors] or [up]
        return next((problem for part in sent if (problem := unlike_model(task, part))), None)

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        base, full, few_shot = state["model"], total.part(FULL), total.part(FEW_SHOT)
        after = super().step(task, state, full, context) if full.tensors else state
        if not few_shot.tensors:
            return after
        classifier = {name: base[name] + change.to(base[name].dtype) for name, change in few_shot.tensors.items()}
        return {**after, "global": {**base, **classifier}, **({ANCHOR: classifier} if self.anchored else {})}

"""Slices of a model by width, one for every device: who gets which, who trains it, how the server joins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from undergrowth.core import (
    Batch,
    Carry,
    Context,
    Grouped,
    InputError,
    Knowledge,
    Packet,
    PerCoordinateMean,
    Plan,
    Reducer,
    Server,
    Shard,
    State,
    Steps,
    Task,
    View,
    WeightedMean,
    fold,
)  # fmt: skip
from undergrowth.learning.gradient_client import GradientClient
from undergrowth.learning.width import Widths, widths_of

RATIOS = (1.0, 0.5, 0.25, 0.125, 0.0625)
NEARLY = 1.1  # half of the channels are a little more than a quarter of the weights: rounding, input, classes


@dataclass(frozen=True)
class SliceClient(GradientClient):
    """Trains the slice that it received, a smaller model, and sends it back with the numbers that tell which it is."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        # A selector may look at what the model makes of the samples.
        with widths_of(task.model).fitting(task.model, down.tensors):
            return super().begin(task, down, shard, own, context)

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        with widths_of(task.model).fitting(task.model, carry["parameters"]):
            return super().step(task, carry, batch)

    def send(self, task: Task, down: Packet, trained: Packet, own: State) -> tuple[Packet, State]:
        which = {key: down.scalars[key] for key in ("ratio", "offset")}
        return replace(trained, scalars={**trained.scalars, **which}), own


@dataclass(frozen=True)
class BySlice(Grouped):
    """The mean of every slice by itself. Full size is only needed where the model is: at the root."""

    by: str = "slice"
    inner: Reducer = WeightedMean()

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        name = f"{up.scalars['ratio']}@{up.scalars['offset']:.0f}"
        return super().lift(sender, replace(up, tags={self.by: name}), age)


@dataclass(frozen=True)
class Slicing(Server):
    """Sends every device its slice, and averages each coordinate over those who trained it.

    A coordinate that nobody trained keeps its value. Integer buffers are taken as the maximum.
    rolls: the windows move on by one channel a round; otherwise they are the first channels.
    """

    ratios: tuple[float, ...] = RATIOS
    rolls: bool = False
    reducer = BySlice()

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        widths = widths_of(task.model)
        ratios = ratios_of(view, widths, self.ratios)
        offset = context.round if self.rolls else 0
        # One packet for all devices with the same slice: prices and links are remembered by packet.
        slices = {
            ratio: Packet(widths.cut(state["model"], ratio, offset), {"ratio": ratio, "offset": float(offset)})
            for ratio in self.ratios
            if ratio in ratios.values()
        }
        packets = {device: slices[ratio] for device, ratio in ratios.items()}
        plan = self.ask(task, replace(view, knows=OfSlices(view.knows, packets)), context, Packet(state["model"]))
        # Those with the same slice one after the other: what is remembered is the latest packet.
        order = sorted(plan.sends, key=lambda child: -ratios.get(child, 2.0))
        return replace(plan, sends={child: packets.get(child, plan.sends[child]) for child in order})

    def check(self, task: Task, up: Packet) -> str | None:
        widths, ratio, offset = widths_of(task.model), up.scalars.get("ratio"), up.scalars.get("offset", -1.0)
        if ratio not in self.ratios or offset < 0 or not float(offset).is_integer():
            return f"its slice has ratio {ratio} and offset {offset}, which nobody was sent"
        if not up.tensors:
            return "it holds no tensor"
        for name, value in up.tensors.items():
            if name not in widths.shapes:
                return f"'{name}' is not a tensor of the model"
            shape = widths.shape(name, ratio)
            if value.shape != shape:
                return f"'{name}' has shape {tuple(value.shape)} and the slice's is {tuple(shape)}"
        return None

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        widths, mean = widths_of(task.model), None
        for name, part in sorted(total.parts().items()):
            ratio, offset = name.split("@")
            values, masks = widths.spread(part.tensors, float(ratio), int(offset))
            placed = {**values, **{f"mask/{key}": mask for key, mask in masks.items()}}
            mean = fold(PerCoordinateMean(), mean, name, Packet(placed, {"samples": part.scalars["samples"]}))
        if mean is None:
            return state
        model = dict(state["model"])
        for name, old in model.items():
            if f"value/{name}" in mean.tensors:
                new, trained = mean.tensors[f"value/{name}"].to(old.dtype), mean.tensors[f"coverage/{name}"] > 0
                model[name] = torch.where(trained, new, old)
        return {**state, "model": model}


@dataclass(frozen=True)
class OfSlices:
    """What is known of devices whose work is a slice: a selection that asks for seconds is told those of the slice."""

    knows: Knowledge
    slices: Mapping[str, Packet]

    def samples(self, device: str) -> int:
        return self.knows.samples(device)

    def seconds(self, device: str, down: Packet) -> float:
        return self.knows.seconds(device, self.slices.get(device, down))

    def window(self, device: str) -> float:
        return self.knows.window(device)

    def profile(self, device: str) -> object:
        return self.knows.profile(device)


def ratios_of(view: View, widths: Widths, ratios: tuple[float, ...]) -> dict[str, float]:
    """Device → its ratio: the largest whose slice has about the device's share of the weights, or the smallest.

    That share is its speed divided by that of the fastest device. A slice of ratio r has between r² and r of the
    weights, and its steps about as much of the FLOPs, so all take about as long as the fastest with the whole model.
    Devices that are all alike are dealt the ratios in turn.
    """
    devices = view.devices
    rates = {device: float(getattr(view.knows.profile(device), "rate", 1.0)) for device in devices}
    fastest = max(rates.values(), default=1.0)
    if fastest == min(rates.values(), default=1.0):
        return {device: ratios[place % len(ratios)] for place, device in enumerate(devices)}
    shares = {ratio: widths.share(ratio) for ratio in ratios}
    fitting = {
        rate: next((ratio for ratio in ratios if shares[ratio] <= NEARLY * rate / fastest), ratios[-1])
        for rate in set(rates.values())
    }
    return {device: fitting[rate] for device, rate in rates.items()}


def check_ratios(ratios: tuple[float, ...]) -> None:
    """Refuses ratios that are no ladder; that each lies in (0, 1] has been seen to."""
    if not ratios or list(ratios) != sorted(set(ratios), reverse=True):
        raise InputError(f"method.ratios {ratios!r} must fall from one to the next, such as (1.0, 0.5, 0.25)")

"""Slices of a model by width: which device gets which slice, how it trains it, and how the server averages slices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Context, InputError, Output, Packet, Plan, Server, State, Task, View, Weights, option
from undergrowth.core.compound_reducers import Grouped
from undergrowth.core.names import MODEL, SAMPLES
from undergrowth.core.reducers import PerCoordinateMean, Reducer, WeightedMean, add_upload
from undergrowth.learning.features import ModelView
from undergrowth.learning.gradient_client import GradientClient, Trained
from undergrowth.learning.planning import ask_each
from undergrowth.learning.width import Widths, widths_of

RATIOS = (1.0, 0.5, 0.25, 0.125, 0.0625)
TOLERANCE = 1.1  # half of the channels have a little more than a quarter of the weights: rounding, input, classes
RATIO, OFFSET = "ratio", "offset"  # scalars of a packet: which slice it holds


class SlicedModel(ModelView):
    """A model that also runs with the weights of a slice: layers that group channels adapt their number of groups."""

    def run(self, weights: Weights, x: Tensor, **options: Any) -> Output:
        with widths_of(self.whole).set_groups(self.whole, weights):
            return self.whole.run(weights, x, **options)


def slice_upload(trained: Trained) -> tuple[Packet, State]:
    """The trained slice with the numbers that identify it: what a client of `WidthServer` sends."""
    which = {name: trained.down.scalars[name] for name in (RATIO, OFFSET)}
    return Packet(trained.tensors, {**trained.scalars, **which}), trained.own


@dataclass(frozen=True)
class SliceClient(GradientClient):
    """Trains the received slice, a smaller model, and sends it back."""

    view: type[SlicedModel] = SlicedModel

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return slice_upload(trained)


@dataclass(frozen=True)
class SliceReducer(Grouped):
    """The mean of each slice. Tensors of full size are only needed at the root, which has the model."""

    by: str = "slice"
    inner: Reducer = WeightedMean()

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        name = f"{up.scalars[RATIO]}@{up.scalars[OFFSET]:.0f}"
        return super().lift(sender, replace(up, tags={self.by: name}), age)


@dataclass(frozen=True, kw_only=True)
class WidthOptions:
    """The options of every method that slices the model by width."""

    ratios: tuple[float, ...] = option(RATIOS, "fractions of the channels that slices have", above=0, at_most=1)

    def check(self) -> None:
        if not self.ratios or list(self.ratios) != sorted(set(self.ratios), reverse=True):
            raise InputError(f"method.ratios {self.ratios!r} must fall from one to the next, such as (1.0, 0.5, 0.25)")


@dataclass(frozen=True)
class WidthServer(Server):
    """Sends every device its slice, and averages each coordinate over the devices that trained it.

    A coordinate that no device trained keeps its value. Integer buffers take the maximum.
    rolls: slices are windows that move by one channel a round; otherwise they are the first channels.
    """

    options: WidthOptions = WidthOptions()
    rolls: bool = False
    reducer = SliceReducer()

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        widths = widths_of(task.model)
        ratios = assign_ratios(view, widths, self.options.ratios)
        offset = context.round if self.rolls else 0
        packets = dict.fromkeys(view.nodes.intersection(view.idle), Packet(state[MODEL]))
        # One packet for all devices with the same slice: links and prices cache the latest packet.
        for ratio in sorted(set(ratios.values()), reverse=True):
            cut = Packet(widths.cut(state[MODEL], ratio, offset), {RATIO: ratio, OFFSET: float(offset)})
            packets.update({device: cut for device, own in ratios.items() if own == ratio})
        return ask_each(self, task, view, context, packets)

    def check(self, task: Task, up: Packet) -> str | None:
        widths, ratio, offset = widths_of(task.model), up.scalars.get(RATIO), up.scalars.get(OFFSET, -1.0)
        if ratio not in self.options.ratios or offset < 0 or not float(offset).is_integer():
            return f"its slice has ratio {ratio} and offset {offset}, which no device was sent"
        if not up.tensors:
            return "it holds no tensor"
        for name, value in up.tensors.items():
            if name not in widths.shapes:
                return f"'{name}' is not a tensor of the model"
            shape = widths.shape(name, ratio)
            if value.shape != shape:
                return f"'{name}' has shape {tuple(value.shape)} and the slice's is {tuple(shape)}"
        return None

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        widths, mean = widths_of(task.model), None
        for name, part in sorted(combined.parts().items()):
            ratio, offset = name.split("@")
            values, masks = widths.spread(part.tensors, float(ratio), int(offset))
            placed = {**values, **{f"mask/{key}": mask for key, mask in masks.items()}}
            mean = add_upload(PerCoordinateMean(), mean, name, Packet(placed, {SAMPLES: part.scalars[SAMPLES]}))
        if mean is None:
            return state
        model = dict(state[MODEL])
        for name, old in model.items():
            if f"value/{name}" in mean.tensors:
                new, trained = mean.tensors[f"value/{name}"].to(old.dtype), mean.tensors[f"coverage/{name}"] > 0
                model[name] = torch.where(trained, new, old)
        return {**state, MODEL: model}


def assign_ratios(view: View, widths: Widths, ratios: tuple[float, ...]) -> dict[str, float]:
    """Device → its ratio: the largest whose slice has about the device's fraction of the weights, or the smallest.

    That fraction is the device's speed divided by that of the fastest device. A slice of ratio r has between r² and r
    of the weights, and its steps about that fraction of the FLOPs, so every device takes about as long as the fastest
    with the whole model. Devices of equal speed are assigned the ratios in turn.
    """
    devices = view.devices
    rates = {device: view.knowledge.speed(device) for device in devices}
    fastest = max(rates.values(), default=1.0)
    if fastest == min(rates.values(), default=1.0):
        return {device: ratios[position % len(ratios)] for position, device in enumerate(devices)}
    fractions = {ratio: widths.fraction(ratio) for ratio in ratios}
    fitting = {
        rate: next((ratio for ratio in ratios if fractions[ratio] <= TOLERANCE * rate / fastest), ratios[-1])
        for rate in set(rates.values())
    }
    return {device: fitting[rate] for device, rate in rates.items()}

"""Slices of a model by width, at the server: which device gets which slice, and how slices are averaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from undergrowth.core import Context, Packet, Plan, Server, State, Task, View
from undergrowth.core.names import MODEL, PHASE, SAMPLES
from undergrowth.core.reducers import PerCoordinateMean, Reducer, WeightedMean, add_upload
from undergrowth.learning.batch_statistics import VARIANCE, MomentsReducer, statistics_names
from undergrowth.learning.planning import ask_each
from undergrowth.learning.servers import has_no_samples, model_mismatch
from undergrowth.learning.slice_client import OFFSET, RATIO, STATISTICS, TRAINING, WidthOptions
from undergrowth.learning.width import Widths, widths_of

TOLERANCE = 1.1  # half of the channels have a little more than a quarter of the weights: rounding, input, classes


@dataclass(frozen=True)
class SliceReducer(Reducer):
    """The mean of each slice, and the pooled statistics, each in a part of the result.

    Tensors of full size are only needed at the root, which has the model.
    """

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        name = f"{up.scalars[RATIO]}@{up.scalars[OFFSET]:.0f}" if RATIO in up.scalars else STATISTICS
        return Packet.join({name: _reducer_of(name).lift(sender, up, age)})

    def merge(self, a: Packet, b: Packet) -> Packet:
        merged = dict(a.parts())
        for name, part in b.parts().items():
            merged[name] = _reducer_of(name).merge(merged[name], part) if name in merged else part
        return Packet.join(merged)


def _reducer_of(part: str) -> Reducer:
    return MomentsReducer() if part == STATISTICS else WeightedMean()


@dataclass(frozen=True)
class WidthServer(Server):
    """Sends every device its slice, and averages each coordinate over the devices that trained it.

    A coordinate that no device trained keeps its value. Integer buffers take the maximum.
    rolls: slices are windows that move by one channel a round; otherwise they are the first channels.

    A round after which the model is evaluated has a second phase if the model has BatchNorm layers: the devices that
    trained measure the statistics of these layers with the new model.
    """

    options: WidthOptions = WidthOptions()
    rolls: bool = False
    reducer = SliceReducer()

    def phases(self, task: Task, context: Context) -> tuple[str, ...]:
        measured = self.options.statistics and task.train.is_evaluated(context.round) and statistics_names(task.model)
        return (TRAINING, STATISTICS) if measured else (TRAINING,)

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        # The root says how far slices have moved.
        return {MODEL: dict(down.tensors), PHASE: down.tags.get(PHASE, ""), OFFSET: down.scalars.get(OFFSET, 0.0)}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        if STATISTICS in (view.phase, state.get(PHASE)):
            return self._plan_statistics(task, state, view)
        widths = widths_of(task.model)
        offset = int(state.get(OFFSET, context.round)) if self.rolls else 0
        whole = Packet(state[MODEL], {OFFSET: float(offset)} if self.rolls else {})
        packets = dict.fromkeys(view.nodes.intersection(view.idle), whole)

        def cut(ratio: float) -> Packet:
            return Packet(widths.cut(state[MODEL], ratio, offset), {RATIO: ratio, OFFSET: float(offset)})

        wanted = assign_ratios(view, widths, self.options.ratios)
        packets.update(assign_slices(view, wanted, self.options.ratios, cut, task.train.deadline))
        return ask_each(self, task, view, context, packets)

    def _plan_statistics(self, task: Task, state: State, view: View) -> Plan:
        """Asks the children that trained, without devices that cannot hold the whole model or would be late."""
        packet, deadline, trained = Packet(state[MODEL], tags={PHASE: STATISTICS}), task.train.deadline, view.answered
        latest = _latest(deadline)
        children = [
            child
            for child in view.idle
            if child in trained and (child in view.nodes or view.knowledge.seconds(child, packet) < latest)
        ]
        return Plan(dict.fromkeys(children, packet), deadline)

    def check(self, task: Task, up: Packet) -> str | None:
        if RATIO not in up.scalars and up.tensors.keys() == set(statistics_names(task.model)):
            return model_mismatch(task, up)
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
        parts = combined.parts()
        if STATISTICS in parts:
            return self._with_statistics(state, parts[STATISTICS])
        widths, mean = widths_of(task.model), None
        for name, part in sorted(parts.items()):
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

    def _with_statistics(self, state: State, measured: Packet) -> State:
        if has_no_samples(measured):
            return state
        # A lossy codec may leave a variance slightly below 0.
        found = {k: v.clamp_min(0) if k.endswith(VARIANCE) else v for k, v in measured.tensors.items()}
        model = {name: found[name].to(old.dtype) if name in found else old for name, old in state[MODEL].items()}
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


def assign_slices(
    view: View,
    wanted: Mapping[str, float],
    ratios: tuple[float, ...],
    cut: Callable[[float], Packet],
    deadline: float | None,
) -> dict[str, Packet]:
    """Device → the packet with its slice: that of the ratio `wanted`, or the next smaller one that the device can do.

    A device can do a slice if it has the memory for it, and if download, training and upload end by the deadline. A
    device that can do none gets the smallest. `cut` makes the packet of a ratio.
    """
    packets: dict[str, Packet] = {}
    left, latest = dict(wanted), _latest(deadline)
    # Ratio by ratio, one packet for all devices with the same slice: links and prices cache the latest packet.
    for ratio in ratios:
        tried = [device for device, largest in left.items() if ratio <= largest]
        if not tried:
            continue
        packet = cut(ratio)
        for device in tried:
            if ratio == ratios[-1] or view.knowledge.seconds(device, packet) < latest:
                packets[device] = packet
                del left[device]
    return packets


def _latest(deadline: float | None) -> float:
    """Less than this is in time. Infinity, the time of a device without enough memory, never is."""
    return math.inf if deadline is None else math.nextafter(deadline, math.inf)

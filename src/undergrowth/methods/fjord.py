"""FjORD (Horváth et al. 2021): ordered dropout; every step trains a random number of first channels.

Down: the slice of w with the first r·C channels of every hidden layer, where r is the largest that fits the device. A
device: E epochs of SGD; for every step it draws a ratio from those of `ratios` that are at most r, with equal
probability, and trains the first channels that are in it; the others do not change. Up: the slice, n_k, r.
Server: every coordinate i ← Σ n_k·w_k,i / Σ n_k over the devices k whose slice has it; a coordinate in no slice keeps
its value. The first channels learn to work without the others, so a narrow slice of the result is a usable model.

r is chosen as in HeteroFL: by the device's speed divided by that of the fastest device of the same server, or in turn
if all are equally fast. With ratios=(1.0,) it is FedAvg, bit for bit.

Departures: a step with a smaller ratio is computed with zeros inside the device's slice, so that devices with different
ratios can be computed at once. It is priced as a step of the whole slice; in the paper it costs less. The
self-distillation from the widest to the drawn ratio, an option of the paper, is left out. A narrow step leaves the
BatchNorm statistics of the other channels unchanged; the paper keeps separate statistics for every ratio.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fjord", options={"ratios": [1.0, 0.5]}, model="mlp", fleet="mixed-edge", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import Batch, Carry, Context, Method, Packet, Shard, State, Steps, Task
from undergrowth.core.names import BUFFERS, PARAMETERS
from undergrowth.learning import GradientClient, Trained, WidthOptions, WidthServer, widths_of
from undergrowth.learning.slices import RATIO, SlicedModel, slice_upload

KEPT = "kept"  # entry of the carry: channels that each of the coming steps trains, steps × sets of channels


@dataclass(frozen=True, kw_only=True)
class FjORDClient(GradientClient):
    options: WidthOptions
    view: type[SlicedModel] = SlicedModel

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        ratios = [ratio for ratio in self.options.ratios if ratio <= down.scalars[RATIO]]
        sets = widths_of(task.model).channels
        kept = torch.tensor([[each.kept(ratio) for each in sets] for ratio in ratios], dtype=torch.int64)
        # The number of draws is a power of two, because engines compute devices at once whose carries have one shape.
        count = 1 << max(0, len(steps) - 1).bit_length()
        draws = torch.randint(len(ratios), (count,), generator=context.generator("width"))
        return {**carry, KEPT: kept[draws].to(shard.x.device)}, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        parameters, buffers, kept = carry[PARAMETERS], carry[BUFFERS], carry[KEPT]
        masks = widths_of(task.model).masks({**parameters, **buffers}, kept[..., 0, :])
        narrow = {name: value * masks[name] if name in masks else value for name, value in parameters.items()}
        after = super().step(task, {**carry, PARAMETERS: narrow}, batch)
        for part, before in ((PARAMETERS, parameters), (BUFFERS, buffers)):
            after[part] = {
                name: torch.where(masks[name], value, before[name]) if name in masks else value
                for name, value in after[part].items()
            }
        return {**after, KEPT: kept.roll(-1, -2)}

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return slice_upload(trained)


@dataclass(frozen=True)
class FjORD(WidthOptions, Method):
    @property
    def client(self) -> FjORDClient:
        return FjORDClient(options=self)

    @property
    def server(self) -> WidthServer:
        return WidthServer(self)

"""FjORD (Horváth et al. 2021): ordered dropout; every step trains a random number of first channels.

Down: the slice of w with the first r·C channels of every hidden layer, where r is the most that suits the device. A
device: E epochs of SGD; for every step it draws a ratio from those of `ratios` that are at most r, all as likely, and
trains the first channels that are in it; the others do not move. Up: the slice, n_k, r.
Server: every coordinate i ← Σ n_k·w_k,i / Σ n_k over the devices k whose slice has it; one that nobody has keeps its
value. So the first channels learn to do without the others, and a narrow slice of the result is a model by itself.

r is that of HeteroFL: by the device's speed against the fastest that the same server sees, or dealt in turn where all
are alike. With ratios=(1.0,) it is FedAvg, bit for bit.

Departures: a step with a smaller ratio is computed by zeros inside the device's slice, so that devices which drew other
ratios can be computed at once; it is priced as what it is, a step of the whole slice, where the paper saves more. The
self-distillation from the widest to the drawn ratio, an option of the paper, is left out. A narrow step leaves the
BatchNorm statistics of the other channels alone; the paper keeps statistics for every ratio.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fjord", options={"ratios": [1.0, 0.5]}, model="mlp", fleet="mixed-edge", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import Batch, Carry, Context, Method, Packet, Shard, State, Steps, Task, option
from undergrowth.learning import RATIOS, SliceClient, Slicing, check_ratios, widths_of


@dataclass(frozen=True)
class OrderedDropout(SliceClient):
    ratios: tuple[float, ...] = RATIOS

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        ladder = [ratio for ratio in self.ratios if ratio <= down.scalars["ratio"]]
        sets = widths_of(task.model).channels
        kept = torch.tensor([[each.kept(ratio) for each in sets] for ratio in ladder], dtype=torch.int64)
        # A power of two of draws, however many steps there are: devices with alike carries are computed at once.
        count = 1 << max(0, len(steps) - 1).bit_length()
        draws = torch.randint(len(ladder), (count,), generator=context.generator("width"))
        return {**carry, "kept": kept[draws].to(shard.x.device)}, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        parameters, buffers, kept = carry["parameters"], carry["buffers"], carry["kept"]
        masks = widths_of(task.model).masks({**parameters, **buffers}, kept[..., 0, :])
        narrow = {name: value * masks[name] if name in masks else value for name, value in parameters.items()}
        after = super().step(task, {**carry, "parameters": narrow}, batch)
        for part, before in (("parameters", parameters), ("buffers", buffers)):
            after[part] = {
                name: torch.where(masks[name], value, before[name]) if name in masks else value
                for name, value in after[part].items()
            }
        return {**after, "kept": kept.roll(-1, -2)}


@dataclass(frozen=True)
class FjORD(Method):
    ratios: tuple[float, ...] = option(RATIOS, "shares of the channels that are drawn from", above=0, at_most=1)

    def check(self) -> None:
        check_ratios(self.ratios)

    @property
    def client(self) -> OrderedDropout:  # type: ignore[override]
        return OrderedDropout(ratios=self.ratios)

    @property
    def server(self) -> Slicing:  # type: ignore[override]
        return Slicing(self.ratios)

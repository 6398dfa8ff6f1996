"""FedFT, FedFT-RDS, FedFT-EDS (source 000 §6.4): φ, the part below `split`, is fixed and only θ above it is tuned.

A device picks samples with the received model, trains θ on them for `epochs` and sends θ_k and their number n_k:
fedft all samples; fedft-rds a random share; fedft-eds those of highest entropy H = −Σ p·log p, p = softmax(z/ρ), with
ρ = `temperature`. Server: θ ← Σ p_k·θ_k, p_k = n_k / Σ n. The first time a device is asked it gets φ as well and keeps
it; after that only θ travels. φ runs in evaluation mode, so its BatchNorm statistics stay what they are. With share = 1
all three are the same, bit for bit.

The source pretrains: weights of a source domain (here `model.weights`), then one round of FedAvg by all devices without a
deadline, then all are given φ. `warm_rounds` is the number of such rounds, in which everybody trains the whole model
on all samples with the run's epochs; the round after them hands out φ to all, also without a deadline.

cache_features: φ(x) never changes, so a device computes it once, keeps it, and later picks and trains from there.

    >>> import undergrowth as ug
    >>> options = {"share": 0.5, "cache_features": True, "warm_rounds": 1}
    >>> result = ug.run(method="fedft-eds", options=options, rounds=3)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from undergrowth.core import (
    Batch,
    Carry,
    Context,
    LoopClient,
    Method,
    Packet,
    Plan,
    Shard,
    State,
    Steps,
    Task,
    View,
    option,
)  # fmt: skip
from undergrowth.learning import All, Averaging, Entropy, GradientClient, Random, Selector, UpperPart, features

WARM, HANDING = "warm", "handing out"  # the tag "phase" of what goes down before the rounds of the method itself


@dataclass(frozen=True)
class Tuning(LoopClient):
    """Trains the whole model in a warm round, and else the upper part on top of what it keeps of the lower one."""

    upper: GradientClient
    cached: bool
    whole = GradientClient()

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        if down.tags.get("phase") == WARM:
            carry, steps = self.whole.begin(task, down, shard, own, context)
            return {**carry, "split": None}, steps
        model = replace(down, tensors={**own.get("lower", {}), **down.tensors})
        maps = self._maps(task, model, shard, own) if self.cached else None
        above = shard if maps is None else Shard(maps, shard.y)
        carry, steps = self.upper.begin(self._seen(task), model, above, own, context)
        return {**carry, "split": self.upper.split, "finish": {**carry["finish"], "maps": maps}}, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        if carry["split"] is None:
            return self.whole.step(task, carry, batch)
        return self.upper.step(self._seen(task), carry, batch)

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        if carry["split"] is None:
            up, own = self.whole.finish(task, down, carry, shard, own, context)
            return replace(up, scalars={**up.scalars, WARM: 1.0}), own
        up, own = self.upper.finish(task, down, carry, shard, own, context)
        maps = carry["finish"]["maps"]
        sent = {name: value for name, value in down.tensors.items() if name not in up.tensors}
        if not sent and maps is own.get("maps"):
            return up, own  # the same object, so that it is not written down again
        return up, {"lower": sent or own.get("lower", {}), **({} if maps is None else {"maps": maps})}

    def _maps(self, task: Task, model: Packet, shard: Shard, own: State) -> Tensor:
        kept = own.get("maps")
        # φ comes once, and anew if the server does not know that it came. Other samples need other maps too.
        if kept is not None and model.tensors.keys() == own["lower"].keys() | self._upper_names(task):
            ...
        return features(task, model.tensors, shard.x, str(self.upper.split))

"""FedFT, FedFT-RDS, FedFT-EDS (Shi, Sheffield thesis, §6.4): only θ above `split` is tuned, φ below it is fixed.

LP, the linear probe (Nguyen et al. 2023; Bernier, Concordia thesis, §3.1), is FedFT with the last layer as θ and cached
features.

A device selects samples with the received model, trains θ on them for `epochs` and sends θ_k and their number n_k.
fedft uses the samples of the run's selector, all by default; fedft-rds a random fraction `share`; fedft-eds the
fraction with the highest entropy H = −Σ p·log p, p = softmax(z/ρ), with ρ = `temperature`. Server: θ ← Σ p_k·θ_k,
p_k = n_k / Σ n. The first time a device is asked it also gets φ and keeps it; after that only θ travels. φ runs in
evaluation mode, so its BatchNorm statistics do not change. With share = 1 and all samples for fedft, all three are the
same, bit for bit.

epochs: the source trains 5; the default is the run's. The source pretrains: weights of a source domain, then one
round of FedAvg by all devices without a deadline. That is the phase `start` of a run, for any method:
`start: {data: {name: cifar100}, warm_rounds: 1}`.

cache_features: φ(x) never changes, so a device computes it once, keeps it, and selects and trains from there. Refused
with `data.augment`, which changes x in every epoch, and with a stream, whose samples expire.

    >>> import undergrowth as ug
    >>> options = {"share": 0.5, "cache_features": True}
    >>> result = ug.run(method="fedft-eds", options=options, start={"warm_rounds": 1}, rounds=3)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from undergrowth.core import (
    AllSelector,
    Context,
    InputError,
    Method,
    Packet,
    Plan,
    Selector,
    Shard,
    State,
    Task,
    View,
    option,
)
from undergrowth.core.client import Batch, Carry, LoopClient, Steps
from undergrowth.core.names import FINISH, MODEL
from undergrowth.learning import AveragingServer, EntropySelector, GradientClient, RandomSelector
from undergrowth.learning.features import UpperModel, features_of


@dataclass(frozen=True)
class FedFTClient(LoopClient):
    """Trains the upper part, which alone is sent.

    own: `lower` is the lower part, from the first packet; `maps` the cached features.
    """

    options: FineTuning

    @property
    def upper(self) -> GradientClient:
        options = self.options
        view = partial(UpperModel, level=options.split) if options.cache_features else None
        return GradientClient(split=options.split, selector=options.selector, epochs=options.epochs, view=view)

    @property
    def ignored_settings(self) -> frozenset[str]:
        # The lower part is in evaluation mode, and the last layer of a model has no dropout.
        return self.upper.ignored_settings | ({"model.dropout"} if self.options.split == "head" else set())

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        if self.options.cache_features:
            task.model.check_split(self.options.split)
        model = replace(down, tensors={**own.get("lower", {}), **down.tensors})
        maps = self._maps(task, down, model, shard, own) if self.options.cache_features else None
        above = shard if maps is None else Shard(maps, shard.y)
        carry, steps = self.upper.begin(task, model, above, own, context)
        return {**carry, FINISH: {**carry[FINISH], "maps": maps}}, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        return self.upper.step(task, carry, batch)

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        up, own = self.upper.finish(task, down, carry, shard, own, context)
        maps = carry[FINISH]["maps"]
        lower = {name: value for name, value in down.tensors.items() if name not in up.tensors}
        if not lower and maps is own.get("maps"):
            return up, own  # the same object, so that it is not written to disk again
        return up, {"lower": lower or own.get("lower", {}), **({} if maps is None else {"maps": maps})}

    def _maps(self, task: Task, down: Packet, model: Packet, shard: Shard, own: State) -> Tensor:
        kept: Tensor | None = own.get("maps")
        # Not usable if φ came again, which a server does that knows of no answer, or if the samples are others.
        if kept is not None and len(kept) == len(shard) and own["lower"].keys().isdisjoint(down.tensors):
            return kept
        return features_of(task, model.tensors, shard.x, self.options.split)


@dataclass(frozen=True, kw_only=True)
class FedFTServer(AveragingServer):
    """Sends φ to devices that have not answered yet, and only θ to the others."""

    options: FineTuning

    def init(self, task: Task, context: Context) -> State:
        if self.options.cache_features and task.augmentation is not None:
            raise InputError(
                "method.cache_features true: cached features are those of inputs that never change, and data.augment "
                "changes them in every epoch; write false, or data.augment: none"
            )
        if self.options.cache_features and task.changing:
            raise InputError(
                "method.cache_features true: cached features are those of samples that stay, and those of a stream "
                "expire; write false, or leave out the section stream"
            )
        return super().init(task, context)

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: {**state.get(MODEL, {}), **down.tensors}}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        model, split = state[MODEL], self.options.split
        names = (*task.model.trainable(split), *task.model.upper_buffers(split))
        whole, upper = Packet(model), Packet({name: model[name] for name in names})
        plan = self.ask(task, view, context, upper if view.heard.keys() >= set(view.idle) else whole)
        return replace(plan, packets={child: upper if child in view.heard else whole for child in plan.packets})


@dataclass(frozen=True)
class FineTuning(Method):
    """The base of the three methods, which differ in the samples that a device trains on."""

    split: str = option("mid", "level of the model below which nothing is trained")
    epochs: int | None = option(None, "epochs of tuning a round; None: the run's", at_least=1)
    cache_features: bool = option(False, "devices keep the features of their samples instead of recomputing them")

    @property
    def selector(self) -> Selector | None:
        """The samples to train on; None: the run's selector."""
        return None

    @property
    def client(self) -> FedFTClient:
        return FedFTClient(self)

    @property
    def server(self) -> FedFTServer:
        return FedFTServer(options=self)


@dataclass(frozen=True)
class FedFT(FineTuning):
    """Federated fine-tuning of the upper part on the samples of the run's selector."""


@dataclass(frozen=True)
class LP(FineTuning):
    """Linear probe: only the last layer of a pretrained model is trained, on cached features."""

    split: str = option("head", "level of the model below which nothing is trained")
    cache_features: bool = option(True, "devices keep the features of their samples instead of recomputing them")


@dataclass(frozen=True)
class FedFTRDS(FineTuning):
    """Federated fine-tuning of the upper part on random samples."""

    share: float = option(0.1, "fraction of the samples that a device trains on", above=0, at_most=1)

    @property
    def selector(self) -> Selector:
        return RandomSelector(self.share) if self.share < 1 else AllSelector()


@dataclass(frozen=True)
class FedFTEDS(FineTuning):
    """Federated fine-tuning of the upper part on the samples that the model is least certain of."""

    share: float = option(0.1, "fraction of the samples that a device trains on", above=0, at_most=1)
    temperature: float = option(0.1, "divides the logits before the entropy; below 1 it hardens", above=0)

    @property
    def needs_classes(self) -> str:
        return "it selects samples by the entropy of their class probabilities" if self.share < 1 else ""

    @property
    def selector(self) -> Selector:
        return EntropySelector(self.share, self.temperature) if self.share < 1 else AllSelector()

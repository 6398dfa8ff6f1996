"""FedFT, FedFT-RDS, FedFT-EDS (Shi, Sheffield thesis, §6.4): φ below `split` is fixed, only θ above it is tuned.

A device picks samples with the received model, trains θ on them for `epochs` and sends θ_k and their number n_k:
fedft those of the run's selector, all by default; fedft-rds a random share; fedft-eds those of highest entropy
H = −Σ p·log p, p = softmax(z/ρ), with ρ = `temperature`. Server: θ ← Σ p_k·θ_k, p_k = n_k / Σ n. The first time a
device is asked it gets φ as well and keeps it; after that only θ travels. φ runs in evaluation mode, so its BatchNorm
statistics stay what they are. With share = 1 and all samples for fedft, all three are the same, bit for bit.

The source pretrains: weights of a source domain (here `model.weights`), then one round of FedAvg by all devices without
a deadline, then all are given φ. `warm_rounds` is the number of such rounds, in which everybody trains the whole model
with the run's epochs and selector; the round after them hands out φ to all, also without a deadline.

cache_features: φ(x) never changes, so a device computes it once, keeps it, and later picks and trains from there.

    >>> import undergrowth as ug
    >>> options = {"share": 0.5, "cache_features": True, "warm_rounds": 1}
    >>> result = ug.run(method="fedft-eds", options=options, rounds=3)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from undergrowth.core import Context, Method, Packet, Plan, State, Task, View, option
from undergrowth.learning import WARM, All, Averaging, Entropy, FineTuning, GradientClient, Random, Selector

HANDING = "handing out"  # the phase of the round after the warm ones


@dataclass(frozen=True)
class Parts(Averaging):
    """Sends φ to whoever has not answered in a round in which it was fixed, and to the others θ alone."""

    split: str = "mid"
    warm_rounds: int = 0

    def init(self, task: Task, context: Context) -> State:
        return {**super().init(task, context), "phase": WARM if self.warm_rounds else "", "rounds": 0}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {"model": {**state.get("model", {}), **down.tensors}, "phase": down.tags.get("phase", "")}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        model, phase = state["model"], state["phase"]
        names = (*task.model.trainable(self.split), *task.model.upper_buffers(self.split))
        if phase:
            return Plan(dict.fromkeys(view.idle, Packet(model, tags={"phase": phase})))
        whole, upper = Packet(model), Packet({name: model[name] for name in names})
        holders = {child for child, said in view.heard.items() if WARM not in said}
        plan = self.ask(task, view, context, upper if holders.issuperset(view.idle) else whole)
        return replace(plan, sends={child: upper if child in holders else whole for child in plan.sends})

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        rounds = state["rounds"] + 1
        after = HANDING if rounds == self.warm_rounds else ""
        phase = WARM if rounds < self.warm_rounds else after
        return {**super().step(task, state, total, context), "phase": phase, "rounds": rounds}


@dataclass(frozen=True)
class Tuned(Method):
    """What the three share; they differ in the samples that a device trains on."""

    split: str = option("mid", "level of the model below which nothing is trained")
    epochs: int | None = option(5, "epochs of tuning a round; None: the run's", at_least=1)
    cache_features: bool = option(False, "devices keep the features of their samples instead of computing them again")
    warm_rounds: int = option(0, "rounds at the start in which all devices train the whole model", at_least=0)

    @property
    def selector(self) -> Selector | None:
        return None  # the run's

    @property
    def client(self) -> FineTuning:  # type: ignore[override]
        tuned = GradientClient(split=self.split, selector=self.selector, epochs=self.epochs)
        return FineTuning(tuned, self.cache_features)

    @property
    def server(self) -> Parts:  # type: ignore[override]
        return Parts(split=self.split, warm_rounds=self.warm_rounds)


@dataclass(frozen=True)
class FedFT(Tuned):
    """Federated fine-tuning of the upper part on the samples of the run's selector."""


@dataclass(frozen=True)
class FedFTRDS(Tuned):
    """Federated fine-tuning of the upper part on random samples."""

    share: float = option(0.1, "share of the samples that a device trains on", above=0, at_most=1)

    @property
    def selector(self) -> Selector:
        return Random(self.share) if self.share < 1 else All()


@dataclass(frozen=True)
class FedFTEDS(Tuned):
    """Federated fine-tuning of the upper part on the samples that the model is least certain of."""

    share: float = option(0.1, "share of the samples that a device trains on", above=0, at_most=1)
    temperature: float = option(0.1, "divides the logits before the entropy; below 1 it hardens", above=0)

    @property
    def selector(self) -> Selector:
        return Entropy(self.share, self.temperature) if self.share < 1 else All()

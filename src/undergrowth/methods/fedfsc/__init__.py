"""FedFSC, FedFSC+, FSCProx (Shi, Sheffield thesis, ch. 4): a classifier trained on a few samples of every class.

Down: the base model {θ, φ}. Full update: E epochs with the objective of `base` (fedavg, fedprox, moon); up: w_k, n_k.
Few-shot update, from the second round on: φ is frozen (also its BatchNorm statistics), θ is trained for
`few_shot_epochs` on `shots` random samples of every class that the device has, drawn again each epoch; up: θ_fs,k − θ.
Server: base model ← Σ p_k·w_k, p_k = n_k / Σ n; θ_fs = mean of the θ_fs,k with equal weights. The global model, which
is evaluated, is {θ_fs, φ} with the φ that θ_fs was trained on; before there is a θ_fs it is the base model.

fedfsc: every device that is asked does both updates. fedfsc-plus: stragglers do the few-shot update only, the others
the full update only. With reduced_epochs = E_r stragglers do E_r epochs of the full update and the few-shot update
("FedFSC+(baseline+)"). Stragglers are the devices that would miss the run's deadline with the full update. With f_n
instead, f_n of all devices are drawn each round to do the full update and f_fs of all, from the others, to be
stragglers; the draw is the same for all methods with these options. Without deadline and f_n both are a half.

fscprox: the full update also minimises mu·‖θ − θ_fs‖² (eq. 4.3) with the last θ_fs, which is sent along; stragglers
train it as in fedfsc-plus. evaluate="base" gives "FedAvg with FSCProx", "few-shot" gives "FedFSC+(FedAvg) with
FSCProx". towards="base" is baseProx: the same term with the received θ; there are no few-shot updates.

mixed: also evaluates {(θ + θ_fs)/2, φ} with the new base model's θ and the φ of θ_fs, which the source compares with
the global model (table 4.8). Training does not change.

The few-shot update has momentum 0.9 and weight decay 0.001. In the author's program it also has a dampening of 0.9
(`few_shot_dampening`), which makes its steps ten times smaller once the velocity has settled, and draws the samples
once for all epochs; the text draws them again in each.

Departures: changes of θ travel instead of θ itself, the same to float error, so that compressed uplinks can be used.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedfsc", options={"base": "moon", "shots": 5}, rounds=3)
    >>> result = ug.run(method="fedfsc-plus", options={"f_n": 0.4, "f_fs": 0.4, "reduced_epochs": 1}, rounds=3)
    >>> result = ug.run(method="fscprox", options={"mu": 0.1}, rounds=3)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Method, State, Task, Weights, option
from undergrowth.core.names import MODEL
from undergrowth.learning import Objective, StragglerOptions
from undergrowth.methods.fedfsc.client import AnchorProximal, FedFSCClient
from undergrowth.methods.fedfsc.server import FedFSCServer


@dataclass(frozen=True)
class FewShotMethod(StragglerOptions, Method):
    """The base of the three methods."""

    base: str = option("fedavg", "objective of the full update", choices=("fedavg", "fedprox", "moon"))
    base_mu: float = option(0.1, "strength of the term that fedprox or moon adds", at_least=0)
    temperature: float = option(0.5, "temperature of moon's similarities", above=0)
    shots: int = option(10, "samples of every class in an epoch of the few-shot update", at_least=1)
    few_shot_epochs: int = option(10, "epochs of the few-shot update; 0: there is none", at_least=0)
    few_shot_lr: float = option(0.01, "learning rate of the few-shot update", above=0)
    few_shot_dampening: float = option(
        0.0, "dampening of the momentum 0.9 of the few-shot update; the author's program has 0.9", at_least=0, below=1
    )
    few_shot_batch: int = option(4, "samples in a step of the few-shot update", at_least=1)
    split: str = option("head", "level of the model above which the classifier begins")
    mixed: bool = option(False, "also evaluate the mean of both classifiers, as accuracy/mixed")

    both_updates: ClassVar[bool] = False  # devices that do the full update do the few-shot update too
    anchored: ClassVar[bool] = False  # devices are sent the last few-shot classifier

    @property
    def needs_classes(self) -> str:
        return "its few-shot update draws the same number of samples of every class" if self.few_shot else ""

    @property
    def few_shot(self) -> bool:
        """Whether there are few-shot updates."""
        return self.few_shot_epochs > 0

    @property
    def anchor_term(self) -> Objective | None:
        """The term that the full update adds to its objective."""
        return None

    @property
    def client(self) -> FedFSCClient:
        return FedFSCClient(self)

    @property
    def server(self) -> FedFSCServer:
        return FedFSCServer(accepts_partial=self.base == "fedprox", options=self)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        base: Weights = state[MODEL]
        few_shot: Weights = state.get("global", base)
        if not self.mixed:
            return {"global": few_shot, "base": base}
        classifier = {name: (few_shot[name] + base[name]) / 2 for name in task.model.trainable(self.split)}
        return {"global": few_shot, "base": base, "mixed": {**few_shot, **classifier}}

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return self.models(task, state, {})["global"]


@dataclass(frozen=True)
class FedFSC(FewShotMethod):
    """Every device does the full and the few-shot update."""

    both_updates: ClassVar[bool] = True


@dataclass(frozen=True)
class FedFSCPlus(FewShotMethod):
    """Stragglers do the few-shot update."""


@dataclass(frozen=True)
class FSCProx(FewShotMethod):
    """The full update has a proximal term towards the few-shot classifier."""

    mu: float = option(0.1, "strength of the proximal term", at_least=0)
    towards: str = option("few-shot", "centre of the proximal term", choices=("few-shot", "base"))
    evaluate: str = option("base", "which of the two models is the global one", choices=("base", "few-shot"))

    anchored: ClassVar[bool] = True

    @property
    def few_shot(self) -> bool:
        return self.few_shot_epochs > 0 and self.towards == "few-shot"

    @property
    def anchor_term(self) -> Objective | None:
        return AnchorProximal(self.mu, self.split, self.towards == "base") if self.mu else None

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        both = dict(super().models(task, state, own))
        both["few-shot"] = both.pop("global")
        return {"global": both.pop(self.evaluate), **both}

"""Task: what is given in a run, whatever the method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from undergrowth.core.model import Model
from undergrowth.core.selection import Selection, Uniform
from undergrowth.core.selector import All, Selector
from undergrowth.core.shard import Shard


@dataclass(frozen=True)
class Train:
    """How devices train, unless a method has an optimiser of its own."""

    rounds: int = 10
    sample: float = 1.0  # share of the devices asked in a round
    epochs: int = 1
    batch: int = 32
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimiser: str = "sgd"  # sgd | adam | adamw
    schedule: str = "constant"  # constant | cosine | step:EVERY:FACTOR | linear, over rounds
    deadline: float | None = None  # simulated seconds that a round may last
    over_select: float = 1.0  # asks so many times the devices it needs, and takes the first that are back
    quorum: float = 1.0  # share of the devices it needs after which a round ends


@dataclass(frozen=True)
class Task:
    model: Model
    classes: int
    train: Train = Train()
    selection: Selection = Uniform()
    public: Shard | None = None  # data that the server itself holds, for methods that use some
    selector: Selector = All()  # on which of their samples devices train, unless a method has one of its own
    ladder: Mapping[str, Model] = field(default_factory=dict, hash=False)  # models devices may have instead, by name

    def to(self, device: str) -> Task:
        """The same task there: its models, and the data that the server holds."""
        for model in (self.model, *self.ladder.values()):
            model.to(device)
        return self if self.public is None else replace(self, public=self.public.to(device))

"""The section `start`: what comes before the first round of a method."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from undergrowth.core import MAX_WHOLE_NUMBER
from undergrowth.runs.fields import Above0, AtLeast0, Count, FractionBelow1, Place, Whole
from undergrowth.runs.sections import Named, Section

# Settings of the training before the first round that replace those in `train`.
TRAINING_KEYS = ("batch", "lr", "momentum", "weight_decay", "schedule")


class SourceSection(Named):
    """The data set that the server trains on before the first round: its name, its path, and options of its loader."""

    path: Place | None = None

    @model_validator(mode="after")
    def _whole(self) -> SourceSection:
        for key in ("partition", "clients", "holdout"):
            if key in self.options:
                raise ValueError(f"has '{key}', and the server trains on all samples; leave it out")
        return self


class FirstMethodSection(Named):
    """A method whose rounds come before those of the run's method: its name and its options."""


class StartSection(Section):
    """What comes before the first round: weights or training on other data, then another method, then warm rounds."""

    weights: Place | None = None
    data: SourceSection | None = None
    method: FirstMethodSection | None = None
    rounds: Count = 1  # of `method`
    epochs: Count = 20  # on `data`
    # Training on `data` or, without data, by `method`. None: the value in `train`.
    batch: Count | None = None
    lr: Above0 | None = None
    momentum: FractionBelow1 | None = None
    weight_decay: AtLeast0 | None = None
    schedule: str | None = None
    # Rounds of FedAvg by all devices.
    warm_rounds: Annotated[Whole, Field(ge=0, le=MAX_WHOLE_NUMBER)] = 0
    warm_epochs: Count = 5

    @model_validator(mode="after")
    def _consistent(self) -> StartSection:
        if self.weights is not None and self.data is not None:
            raise ValueError("has weights and data; give one of them")
        changed = {key for key, field in type(self).model_fields.items() if getattr(self, key) != field.default}
        if self.data is None and "epochs" in changed:
            raise ValueError("has epochs, which is for training on other data; give data as well")
        if self.data is None and self.method is None and (unused := changed.intersection(TRAINING_KEYS)):
            raise ValueError(f"has {min(unused)}, which is for training on other data or by a method; give one of them")
        if self.method is None and "rounds" in changed:
            raise ValueError("has rounds without method; give its name as well")
        if not self.warm_rounds and "warm_epochs" in changed:
            raise ValueError("has warm_epochs without warm_rounds; give their number as well")
        return self

    @property
    def trains(self) -> bool:
        """Whether anything is trained before the first round."""
        return self.data is not None or self.method is not None or self.warm_rounds > 0

    def __str__(self) -> str:
        parts = [] if self.weights is None else [f"weights from '{self.weights}'"]
        if self.data is not None:
            parts.append(f"{self.epochs} epochs on {self.data.name} at the server")
        if self.method is not None:
            parts.append(f"{self.rounds} round{'s' if self.rounds > 1 else ''} of {self.method.name}")
        if self.warm_rounds:
            rounds = "1 warm round" if self.warm_rounds == 1 else f"{self.warm_rounds} warm rounds"
            parts.append(f"{rounds} of {self.warm_epochs} epochs on all devices")
        return ", then ".join(parts)

"""The section `personal`: what is evaluated, and adapted, on every device after the last round of a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from undergrowth.core import MAX_WHOLE_NUMBER
from undergrowth.core.notation import parse
from undergrowth.learning.adaptation import HOW
from undergrowth.runs.fields import Above0, AtLeast0, Count, FractionAbove0, FractionBelow1, Whole
from undergrowth.runs.sections import Section


class PersonalSection(Section):
    """Local-only, federated and adapted models on every device. May be written as true, or as a list of adaptations."""

    evaluate: bool = False
    adapt: tuple[str, ...] = ("fine-tune",)
    test: Literal["own", "by-class"] = "own"  # samples of the device, or see `ClassWeightedPopulation`
    # Training of the local-only and of the adapted models. None: the value in `train`.
    epochs: Count = 5
    batch: Count | None = None
    lr: Above0 | None = None
    momentum: FractionBelow1 | None = None
    weight_decay: AtLeast0 | None = None
    # Early stopping on a part of the device's training samples.
    validation: FractionBelow1 = 0.1
    patience: Annotated[Whole, Field(ge=0, le=MAX_WHOLE_NUMBER)] = 2
    form: Literal["cited", "printed", "averaged"] = "cited"  # of the loss of kd
    # Which devices adapt: all, or those whose federated model is below their local one, the lowest first.
    only: Literal["all", "below"] = "all"
    max_fraction: FractionAbove0 | None = None
    max_devices: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {"evaluate": value}
        if isinstance(value, str | list | tuple):
            value = {"adapt": [value] if isinstance(value, str) else value}
        return {"evaluate": True, **value} if isinstance(value, Mapping) and value else value

    @field_validator("adapt", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("adapt")
    @classmethod
    def _known(cls, adapt: tuple[str, ...]) -> tuple[str, ...]:
        for how in adapt:
            parse("", how, HOW)
        if len(set(adapt)) < len(adapt):
            raise ValueError("names an adaptation twice; write each once")
        return adapt

    @model_validator(mode="after")
    def _consistent(self) -> PersonalSection:
        if self.only == "below" and not self.adapt:
            raise ValueError("has only: below, but no adaptation; give adapt as well")
        if self.only == "below" and not self.validation:
            raise ValueError("has only: below, which compares models on validation samples; give validation above 0")
        if self.only == "all" and (self.max_fraction is not None or self.max_devices is not None):
            raise ValueError("has a limit on the devices that adapt; give only: below as well")
        if self.max_fraction is not None and self.max_devices is not None:
            raise ValueError("has max_fraction and max_devices; give one of them")
        return self

    def limit(self, devices: int) -> int:
        """How many of `devices` may adapt."""
        if self.max_devices is not None:
            return min(self.max_devices, devices)
        return devices if self.max_fraction is None else max(1, round(self.max_fraction * devices))

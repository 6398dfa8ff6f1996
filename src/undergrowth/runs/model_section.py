"""The section `model` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import field_validator, model_validator

from undergrowth.learning.adapters import Adapters
from undergrowth.runs.fields import Above0, Count
from undergrowth.runs.sections import Named, Section


class Rung(Named):
    """A model that a device may use instead of the run's model."""

    count: Count | None = None  # how many devices get it; None: see `assign_models`
    init: str | None = None

    @property
    def label(self) -> str:
        """Names the model in packets and checkpoints. Its start is not part of the name."""
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


class LoraSection(Section):
    """Low-rank adapters of the run's model, which is frozen but for its head; see `learning/adapters.py`."""

    rank: Count = 8
    alpha: Above0 = 16.0
    layers: tuple[str, ...] = ()

    @field_validator("layers", mode="before")
    @classmethod
    def _one_layer(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class ModelSection(Named):
    """The model of the run by its name, its options, and what is changed in it."""

    name: str = "cnn"
    levels: dict[str, str] | None = None  # split level → first submodule above it; None: the model's own, or a guess
    ladder: tuple[Rung, ...] = ()
    lora: LoraSection | None = None
    statistics: Literal["running", "frozen"] = "running"  # of BatchNorm layers, in training

    @model_validator(mode="after")
    def _no_ladder_with_changed_models(self) -> ModelSection:
        if self.lora is not None and self.ladder:
            raise ValueError("has lora and a ladder; adapters belong to one model for all devices, so give one of them")
        if self.statistics == "frozen" and self.ladder:
            raise ValueError(
                "has frozen statistics and a ladder; statistics are frozen in one model for all devices, so give one"
            )
        return self

    @property
    def adapters(self) -> Adapters | None:
        """The adapters of the run's model; None if it has none."""
        lora, head = self.lora, (self.levels or {}).get("head")
        return None if lora is None else Adapters(lora.rank, lora.alpha, lora.layers, head)

    def without_options_of_rounds(self) -> ModelSection:
        """The model of what comes before the first round: the run's model alone, without adapters."""
        return self.model_copy(update={"ladder": (), "lora": None})

    @field_validator("ladder", mode="before")
    @classmethod
    def _from_counts(cls, value: Any) -> Any:
        """The list that `{name: count}` is short for."""
        if not isinstance(value, Mapping):
            return value
        if None in value.values():
            raise ValueError("has a model without a count; write the number of devices, as in {wrn-10-1: 6}")
        return [{"name": name, "count": count} for name, count in value.items()]

    @field_validator("ladder")
    @classmethod
    def _all_have_counts(cls, ladder: tuple[Rung, ...]) -> tuple[Rung, ...]:
        without = [rung.label for rung in ladder if rung.count is None]
        if 0 < len(without) < len(ladder):
            raise ValueError(f"has counts, but '{without[0]}' has none; give a count to every model or to none")
        return ladder

    @property
    def counts(self) -> dict[str, int]:
        """How many devices get each model of the ladder, by its label; empty without counts."""
        return {rung.label: rung.count for rung in self.ladder if rung.count is not None}

"""The section `stream`: how the samples of devices arrive, expire and shift from round to round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from undergrowth.core import MAX_WHOLE_NUMBER
from undergrowth.data import Stream
from undergrowth.runs.fields import Count, FractionAbove0, Whole
from undergrowth.runs.sections import Section

MAX_MEMORY = 1_000_000  # samples


class StreamSection(Section):
    """A memory of each device; without one, devices hold all their samples all the time."""

    memory: Annotated[Count, Field(le=MAX_MEMORY)] | None = None
    arrive: Count = 10
    shift: Literal["none", "sudden", "gradual", "recurring"] = "none"
    kind: Literal["place", "rotation"] = "place"
    every: Count = 10
    over: Count | None = None  # None: half of `every`
    fraction: FractionAbove0 = 1.0
    local_epochs: Annotated[Whole, Field(ge=0, le=MAX_WHOLE_NUMBER)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> StreamSection:
        changed = [key for key, field in type(self).model_fields.items() if getattr(self, key) != field.default]
        if self.memory is None and changed:
            raise ValueError(f"has {changed[0]} without memory; give the samples that a device can hold as well")
        of_shifts = [key for key in changed if key in ("kind", "every", "over", "fraction")]
        if self.shift == "none" and of_shifts:
            raise ValueError(f"has {of_shifts[0]} without a shift; give shift: sudden, gradual or recurring as well")
        if self.shift != "gradual" and self.over is not None:
            raise ValueError(f"has over, which is for a gradual shift, and shift is {self.shift}; leave it out")
        if self.over is not None and self.over > self.every:
            raise ValueError(f"has over {self.over} and every {self.every}; a shift must end before the next one")
        return self

    @property
    def stream(self) -> Stream | None:
        """The stream that the section describes; None without a memory."""
        if self.memory is None:
            return None
        over = self.over or max(1, self.every // 2)
        return Stream(**{**self.model_dump(), "over": over if self.shift == "gradual" else 1})

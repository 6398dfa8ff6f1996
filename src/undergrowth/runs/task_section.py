"""The section `task`: what a model learns, with a loss and metrics of the user."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from undergrowth.runs.fields import Whole
from undergrowth.runs.sections import Section


class TaskSection(Section):
    """What a model learns: by default what the data set is for."""

    name: Literal["classification", "regression", "multi-label", "next-token"] | None = None
    loss: str | None = None  # module:function
    metrics: dict[str, str] = Field(default_factory=dict)  # name → module:function
    main: str | None = None  # the metric that decides which model is better
    better: Literal["higher", "lower"] | None = None  # of `main`, if that is a metric of the user
    padding: Annotated[Whole, Field(ge=0)] | None = None  # the token of next-token that does not count

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

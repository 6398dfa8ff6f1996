"""The base classes of the sections of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator


def section_type(parent: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The section that the field `key` of `parent` holds; None if the field is a value, or not known."""
    field = parent.model_fields.get(key)
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def keys_of(model: type[BaseModel], place: Sequence[str]) -> list[str]:
    """The keys of the section at `place`, such as ["train"]; of the last section on the way if `place` is a value."""
    for step in place:
        inner = section_type(model, step)
        if inner is None:
            break
        model = inner
    return list(model.model_fields)


class Section(BaseModel):
    """Settings with fixed keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def options(self) -> dict[str, Any]:
        """Keys other than the fields of the section, if it allows any."""
        return dict(self.model_extra or {})


class Named(Section):
    """A section that may be written as a bare name. Keys other than its fields are options of what is named."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

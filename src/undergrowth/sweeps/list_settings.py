"""Which settings of an experiment are lists by nature, such as `model.ladder`. A list for any other is a choice."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from undergrowth import data, models
from undergrowth.core import InputError
from undergrowth.runs.method_builder import method_class
from undergrowth.runs.own_objects import is_reference, resolve


def is_list_setting(section: str, kind: type[BaseModel], name: Any, key: str) -> bool:
    """Whether `key` of a section is a list by nature.

    `section` is method, data, public or model, whose options depend on the `name` in the section; `kind` is its type.
    """
    field = kind.model_fields.get(key)
    if field is not None:
        return _holds_a_list(field.annotation)
    return _holds_a_list(_option_type(section, name, key))


def _option_type(section: str, name: Any, key: str) -> Any:
    """The type of an option, from its annotation or its default; None if there is no such option."""
    try:
        if section == "method":
            method = method_class(name)
            return None if method is None else get_type_hints(method).get(key)
        if section == "model" and not is_reference(name):
            return type(models.describe(name).options.get(key))
        if section in ("model", "data", "public"):
            loader = resolve(section, name) if is_reference(name) else data.describe(name).loader
            parameter = inspect.signature(loader, eval_str=True).parameters.get(key)
            return None if parameter is None else parameter.annotation
    except (InputError, TypeError, NameError):  # validation refuses a wrong name later; or an annotation is not a type
        return None
    return None


def _holds_a_list(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    if isinstance(origin, type) and issubclass(origin, Sequence) and not issubclass(origin, str | bytes):
        return True
    return origin in (Annotated, Union, UnionType) and any(_holds_a_list(each) for each in get_args(kind))

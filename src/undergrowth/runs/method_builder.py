"""Builds the method that an experiment names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, ValidationError, create_model

from undergrowth.core import InputError, Method, suggest
from undergrowth.methods import METHODS
from undergrowth.runs.fields import NO_BOOLEANS
from undergrowth.runs.own_objects import call, construct, importable_options, is_reference, resolve
from undergrowth.runs.validation_errors import explain


def build_method(name: str, options: dict[str, Any]) -> Method:
    """The method `name` with `options`. Raises `InputError` if a name or the type of a value is wrong."""
    kind = method_class(name)
    if kind is None:
        method: Method = construct("method", name, options, lambda found: isinstance(found, Method), "a Method")
        return method
    hints = get_type_hints(kind)
    known: dict[str, Any] = {
        field.name: (_field_type(hints[field.name]), _default(field))
        for field in fields(kind)  # type: ignore[arg-type]
        if field.init
    }
    validator = create_model(f"{name} options", __config__=ConfigDict(extra="forbid"), **known)
    try:
        values = validator.model_validate(options)
    except ValidationError as error:
        if not known:
            raise InputError(f"method.{next(iter(options))} is not a known key; {name} has no options") from None
        raise InputError(explain(error, validator, "method")) from None
    chosen = {field: getattr(values, field) for field in known}
    for key, reference in importable_options(name, chosen).items():
        chosen[key] = resolve(f"method.{key}", reference)
    return call("method", name, kind, chosen, "a Method") if is_reference(name) else kind(**chosen)


def method_class(name: str) -> type[Method] | None:
    """The dataclass of a method, or None if the user's `module:object` is something else that makes a method."""
    if is_reference(name):
        found = resolve("method", name)
        is_class = isinstance(found, type) and issubclass(found, Method) and is_dataclass(found)
        return found if is_class else None
    if name not in METHODS:
        raise InputError(f"method '{name}' is not known; {suggest(name, METHODS)}")
    return METHODS[name]


def _default(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return Field(default_factory=field.default_factory)
    return ... if field.default is MISSING else field.default


def _field_type(hint: Any) -> Any:
    """The type that an option is validated as. Numbers do not accept true or false."""
    return Annotated[hint, NO_BOOLEANS] if _may_be_a_number(hint) else hint


def _may_be_a_number(hint: Any) -> bool:
    is_function = get_origin(hint) is Callable
    return hint in (int, float) or (not is_function and any(map(_may_be_a_number, get_args(hint))))

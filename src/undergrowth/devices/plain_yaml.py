"""Loads YAML. PyYAML would silently keep the last value of a key that is there twice, and convert dates and times."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from undergrowth.core import InputError

MAX_DIGITS = 1000  # of a whole number
MAX_VALUES = 2_000_000  # of a file, with those of every alias


class DuplicateKeyError(yaml.MarkedYAMLError):
    """A mapping contains a key twice. `problem` ends a sentence that begins with the name of the file."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}  # key → line on which it was first seen
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                where = f"line {line}" if lines[key.value] == line else f"lines {lines[key.value]} and {line}"
                raise DuplicateKeyError(problem=f"has '{key.value}' twice ({where}); keep one of them")
            lines[key.value] = line
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError):  # of PyYAML, for a tag such as in `rounds: !!int abc`
            problem = f"{node.value!r} does not fit its tag !!{node.tag.rpartition(':')[2]}; leave out the tag"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_time(self, node: yaml.ScalarNode) -> str:
        """The text that the user wrote: no setting is a date or a time, and messages repeat the value."""
        return str(node.value)

    def construct_int(self, node: yaml.ScalarNode) -> int | str:
        if len(node.value) > MAX_DIGITS:  # Python refuses to convert thousands of digits
            problem = f"a number has {len(node.value)} digits; write at most {MAX_DIGITS}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        # YAML 1.1 reads the time 1:30 as the number 90, in base 60.
        return self.construct_time(node) if ":" in node.value else self.construct_yaml_int(node)

    def construct_float(self, node: yaml.ScalarNode) -> float | str:
        return self.construct_time(node) if ":" in node.value else self.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_time)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_float)


def load_yaml(text: str) -> Any:
    """The value of a YAML text. Raises `DuplicateKeyError`, or another `yaml.YAMLError` if it is not YAML."""
    try:
        value = yaml.load(text, Loader=_Loader)  # a SafeLoader: it runs no code from the text
        _check_size(value)
        json.dumps(value, default=repr, skipkeys=True)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="its lists and mappings are nested too deeply") from None
    return value


def _check_size(value: Any) -> None:
    """Raises a `yaml.YAMLError` if aliases, such as *a, make the value very large or, as in &a [*a], infinite."""
    values = [value]
    for count in range(MAX_VALUES):
        if not values:
            return
        found = values.pop()
        if isinstance(found, dict):
            values.extend(found.values())
        elif isinstance(found, list):
            values.extend(found)
        if count + len(values) > MAX_VALUES:
            break
    raise yaml.MarkedYAMLError(
        problem=f"by its aliases it has more than {MAX_VALUES:,} values, or a list or a mapping in it contains itself"
    )


def load_shipped(name: str) -> Any:
    """The value of a YAML file of this package, such as `links.yaml`."""
    return load_yaml(resources.files("undergrowth.devices").joinpath(name).read_text(encoding="utf-8"))


def load_file(path: Path, what: str) -> Any:
    """The value of a YAML file. Raises an `InputError` that begins with `what` if the file cannot be read."""
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except DuplicateKeyError as error:
        raise InputError(f"{what} {error.problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{what} cannot be read: {' '.join(str(error).split())}") from None


def is_number(value: object) -> bool:
    """Whether a value of a YAML file is a finite number."""
    # Not `math.isfinite`, which raises an exception for a whole number that no float holds.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max

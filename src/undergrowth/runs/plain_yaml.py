"""YAML, read without surprises: a key that is written twice is refused, where the last would silently win."""

from __future__ import annotations

from typing import Any

import yaml


class Twice(yaml.MarkedYAMLError):
    """A key that a mapping has twice."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: dict[str, int] = {}  # key → its line
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in seen:
                where = f"line {line}" if seen[key.value] == line else f"lines {seen[key.value]} and {line}"
                raise Twice(problem=f"has '{key.value}' twice ({where}); keep one of them")
            seen[key.value] = line
        return node


def load_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # a SafeLoader: it runs no code from the text

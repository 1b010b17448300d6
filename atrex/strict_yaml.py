"""Safe YAML in which a mapping names each key once: PyYAML keeps the last of two without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Mapping[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", node.value[position][0].start_mark
                )
        mapping: Mapping[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def load(text: str) -> Any:
    """The document of a YAML text. Raises yaml.YAMLError, ValueError (a bad date) and RecursionError."""
    return yaml.load(text, _Loader)

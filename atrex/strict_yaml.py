"""Safe YAML in which a mapping names each key once: PyYAML keeps the last of two without a word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from atrex.errors import UsageError

T = TypeVar("T")


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


def read(path: Path, validate: Callable[[Any], T], remedy: str = "") -> T:
    """What `validate` makes of a YAML file. Raises UsageError: file, field, what is wrong, and `remedy`."""
    try:
        return validate(load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise UsageError(f"{path}: field {field}: {_line(first['msg'])}{remedy}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # a bad date is a ValueError
        raise UsageError(f"{path}: not YAML: {_line(error)}{remedy}") from None


def _line(text: object) -> str:
    return " ".join(str(text).split())

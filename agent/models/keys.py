"""Keys: from the environment alone, into a client alone, and out of every text that leaves this package."""

from __future__ import annotations

import os
import re

from atrex.errors import EnvironmentProblem

_SHORTEST_SECRET = 8  # "none" and "EMPTY" are no secrets, and words of honest replies
_REMOVED = "[key removed]"


class Key:
    """A key and the variable it came from; nothing prints it."""

    def __init__(self, variable: str, value: str) -> None:
        self.variable = variable
        self._value = value

    def __repr__(self) -> str:
        return f"Key({self.variable})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key is never pickled")

    def reveal(self) -> str:
        """The key itself, for the client that sends it."""
        return self._value

    def scrub(self, text: str) -> str:
        """`text` without the key, and without half surrogate pairs, which JSON can name but no file hold."""
        text = text.encode("utf-8", "replace").decode()
        return text.replace(self._value, _REMOVED) if len(self._value) >= _SHORTEST_SECRET else text


def needed(variable: str) -> Key:
    """The key in an environment variable. Raises EnvironmentProblem, naming the variable, without one."""
    value = os.environ.get(variable, "").strip()
    if not value:
        raise EnvironmentProblem(f"{variable} is not set; export {variable}=… with a key of the provider")
    return Key(variable, _sound(variable, value))


def optional(variable: str) -> Key:
    """The key in a variable, or a placeholder: a local server takes any."""
    value = os.environ.get(variable, "").strip()
    return Key(variable, _sound(variable, value) if value else "none")


def _sound(variable: str, value: str) -> str:
    """A header's value: anything else would be quoted in the HTTP library's complaint."""
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise EnvironmentProblem(f"{variable} holds a space or a letter that no key has; export it again")
    return value

"""The errors a user sees, each with the exit code the command line ends with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


class AtrexError(Exception):
    """An error with a one-line message for the user; never shown as a traceback."""

    exit_code = 3


class UsageError(AtrexError):
    """The command line or an input file is wrong (exit 2)."""

    exit_code = 2


class RejectedError(AtrexError):
    """A candidate was rejected or a target was missed (exit 1)."""

    exit_code = 1


class EnvironmentProblem(AtrexError):
    """This machine lacks something that the command needs (exit 3)."""

    exit_code = 3


def run_script(main: Callable[[], int]) -> NoReturn:
    """End a script (benchmarks/) with main's status; an error of ours is one line and its exit code."""
    try:
        sys.exit(main())
    except AtrexError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

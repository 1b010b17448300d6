"""Lines for people: whatever a model or a file puts into them is shown as it is, and steers nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from atrex.commands.common import console_for_output, console_for_progress, speaker

HOSTILE = "step 1: [token_count 0-64, hidden_size 2049+] reads x[/2] twice, [bold]says[/bold] [/]"


def test_brackets_are_no_markup() -> None:
    for console in (console_for_output(), console_for_progress()):
        console.file, console.width = io.StringIO(), 200
        speaker(console)(HOSTILE)
        speaker(console, "yellow")(HOSTILE)
        console.print(HOSTILE)
        assert console.file.getvalue().splitlines() == [HOSTILE] * 3


@pytest.mark.parametrize("word", ["\x1b[2Jgone", "\x9b31mred", "a\u202eb", "two\nlines", "bell\x07"])
def test_nothing_steers_the_terminal(word: str) -> None:
    out = io.StringIO()
    speaker(Console(file=out, markup=False, force_terminal=True, color_system=None, width=80))(
        f"said: {word}"
    )
    shown = out.getvalue()
    assert len(shown.splitlines()) == 1
    assert shown.rstrip("\n").isprintable()

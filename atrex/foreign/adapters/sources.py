"""The reference in a file, whatever collection it comes from, and the kernel in a kernel's file."""

from __future__ import annotations

import re
from pathlib import Path

from atrex.candidate import read_source
from atrex.errors import UsageError
from atrex.foreign.adapters import gpuemu, tritonbench
from atrex.foreign.adapters.item import read_json
from atrex.foreign.loading import SEPARATOR
from atrex.foreign.messages import Source

_ARRAYS = re.compile(r"\bread_inputs\s*\(")


def source_of(reference: Path) -> Source:
    """A reference with what lies beside it. Raises UsageError."""
    text = read_source(reference)
    if _ARRAYS.search(text):
        meta = reference.with_name("meta.json")
        try:
            return gpuemu.source(text, read_json(meta))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UsageError(f"{meta}: {type(error).__name__}: {error}") from None
    return Source(text=text, name=reference.stem, beside=tritonbench.BESIDE)


def kernel_of(path: Path) -> str:
    """A kernel's source without the test that a benchmark appends below a line of #. Raises UsageError."""
    text = read_source(path)
    head, *tail = SEPARATOR.split(text, maxsplit=1)
    return head if tail and "def test_" in tail[0] else text

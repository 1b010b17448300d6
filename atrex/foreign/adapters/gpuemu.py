"""gpuemu-corpus: folders of kernel.py (`run(inputs)` on NumPy arrays), ref_fp64.py and meta.json.

ref_fp64.py reads arrays with read_inputs(), computes in fp64 and emits one array. meta.json names dtypes and
the extents that its dimensions may have. A name that ends in `_buggy` is the corpus's own label.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atrex.candidate import read_source
from atrex.errors import UsageError
from atrex.foreign.adapters.item import Item, labels_of, read_json
from atrex.foreign.messages import Source

_MOST_ELEMENTS = 1 << 14  # of one call, so that the interpreter can be asked for it
_CALLS = 6


def find(directory: Path) -> Iterator[Item]:
    """Every folder with a meta.json."""
    labels = labels_of(directory)
    for meta in sorted(directory.rglob("meta.json")):
        folder = meta.parent
        name = str(folder.relative_to(directory)) if folder != directory else folder.name
        kernel = folder / "kernel.py"
        try:
            data = read_json(meta)
            kernel = _beside(folder, data, "kernel", "kernel.py")
            reference = _beside(folder, data, "reference", "ref_fp64.py")
            made, text = source(read_source(reference), data), read_source(kernel)
        except (UsageError, KeyError, TypeError, ValueError, IndexError) as error:
            yield Item(name, kernel, "", unusable=f"meta.json: {type(error).__name__}: {error}")
            continue
        label = labels.get(name, not str(data.get("name", folder.name)).endswith("_buggy"))
        yield Item(name, kernel, text, made, f"--reference {shlex.quote(str(reference))}", label=label)


def source(reference: str, meta: dict[str, Any]) -> Source:
    """A reference with the extents that its meta.json names. Raises KeyError, TypeError and the like."""
    dtype = str(meta.get("dtypes", ["float32"])[0])
    return Source(text=reference, style="arrays", arrays=_shapes(meta), dtype=dtype)


def _beside(folder: Path, meta: dict[str, Any], key: str, usual: str) -> Path:
    """A file that meta.json names from the corpus's root, or the usual one in the folder."""
    named = folder.parent / str(meta.get(key, ""))
    return (
        named
        if named.is_file() and named.resolve().is_relative_to(folder.parent.resolve())
        else folder / usual
    )


def _shapes(meta: dict[str, Any]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Extents of the inputs, for a few combinations of what the dimensions may be: small, odd and large."""
    schema = meta["op_schema"]
    names = [dim["name"] for dim in schema["dims"]]
    combinations = list[dict[str, tuple[int, ...]]]()
    for extents in itertools.product(*(dim["candidates"] for dim in schema["dims"])):
        dims = dict(zip(names, extents, strict=True))
        shapes = {t["name"]: tuple(int(dims[d]) for d in t["dims"]) for t in schema["inputs"]}
        if sum(math.prod(shape) for shape in shapes.values()) <= _MOST_ELEMENTS:
            combinations.append(shapes)
    if not combinations:
        raise ValueError(f"no combination of its dimensions has at most {_MOST_ELEMENTS} elements")
    combinations.sort(key=lambda shapes: sum(math.prod(shape) for shape in shapes.values()))
    step = max(1, (len(combinations) - 1) // (_CALLS - 1)) if len(combinations) > 1 else 1
    chosen = combinations[::-step][:_CALLS]
    return tuple(reversed(chosen))

"""TritonBench-T and KernelBenchX: a function above a line of #, below it a test that calls it.

Tasks are such files without Triton. Kernels are files of a task's name (the part above the line, if there is
one) or lines of a .jsonl with `predict` and `file`. A kernel is a function of the task's name, or
`kernel_function`. Labels come from labels.json, or from `exe_ok` or `label` of a line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from atrex.foreign.adapters.item import Item, Label, labels_of, python_files, read_jsonl
from atrex.foreign.loading import SEPARATOR
from atrex.foreign.messages import Source

_FENCE = re.compile(r"```(?:python)?\n(.*?)(?:```|\Z)", re.DOTALL)
# Their tests draw inputs with a helper of this name; ours knows the arguments that they give.
_DATA_UTILS = '''
import torch


def rand_tensor(shape, dtype=torch.float32, device="cuda", mode="standard", outlier_prob=0.001,
                outlier_scale=10.0, **_):
    """Normal values; in mode "outlier" a few of them are larger."""
    value = torch.randn(tuple(shape), device=device)
    if mode == "outlier":
        large = torch.rand(tuple(shape), device=device) < outlier_prob
        value = torch.where(large, value * outlier_scale, value)
    return value.to(dtype)


def rand_int(low, high, shape, dtype=torch.int64, device="cuda", **_):
    """Uniform integers below `high`."""
    return torch.randint(low, high, tuple(shape), dtype=dtype, device=device)
'''


BESIDE = {"data_utils": _DATA_UTILS}


def find(directory: Path) -> Iterator[Item]:
    """Every kernel for which there is a task."""
    files, unreadable = python_files(directory)
    yield from unreadable
    tasks = {path.stem: (path, text) for path, text in files if _is_task(text)}
    labels = labels_of(directory)
    for path, text in files:
        if _is_task(text) or "triton" not in text:
            continue
        name = str(path.relative_to(directory).with_suffix(""))
        label = labels.get(name, labels.get(path.stem))
        yield _item(name, path, SEPARATOR.split(text, maxsplit=1)[0], tasks.get(path.stem), label)
    for path in sorted(directory.rglob("*.jsonl")):
        for number, row in enumerate(read_jsonl(path)):
            file = PurePosixPath(str(row.get("file", row.get("task_id", ""))))
            name = f"{path.relative_to(directory).with_suffix('')}/{number:04d}-{file.stem}"
            kernel = str(row.get("predict", row.get("code", "")))
            label = labels.get(name, _label(row))
            yield _item(name, path, _unfenced(kernel), tasks.get(file.stem), label)


def _is_task(text: str) -> bool:
    parts = SEPARATOR.split(text, maxsplit=1)
    return len(parts) == 2 and "def test_" in parts[1] and "import triton" not in parts[0]


def _item(name: str, path: Path, kernel: str, task: tuple[Path, str] | None, label: Label) -> Item:
    if task is None:
        return Item(
            name, path, kernel, label=label, unusable="no task of its name: a function, #, and its test"
        )
    source = Source(text=task[1], name=task[0].stem, style="tested", beside=BESIDE)
    return Item(name, path, kernel, source, f"--reference {shlex.quote(str(task[0]))}", label=label)


def _unfenced(text: str) -> str:
    """The code of an answer that is wrapped in Markdown; the part above a line of #."""
    fenced = _FENCE.search(text)
    return SEPARATOR.split(fenced.group(1) if fenced else text, maxsplit=1)[0]


def _label(row: dict[str, Any]) -> Label:
    for key in ("exe_ok", "label", "correct"):
        if isinstance(row.get(key), bool):
            return bool(row[key])
    return None

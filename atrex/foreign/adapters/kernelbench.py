"""KernelBench: tasks with class Model, get_inputs and get_init_inputs; kernels with class ModelNew.

A kernel finds its task by `level_L_problem_N` in its name and `levelL/N_*.py` of the task; else by a task
whose file name its own begins with; else by the only task in its own folder. Labels are `correctness` of the
run's eval_results.json beside the kernels, or labels.json.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atrex.foreign.adapters.item import Item, Label, labels_of, python_files, read_json
from atrex.foreign.messages import Source

_TASK = re.compile(r"^class Model\b", re.MULTILINE)
_INPUTS = re.compile(r"^def get_inputs\b", re.MULTILINE)
_KERNEL = re.compile(r"^class ModelNew\b", re.MULTILINE)
_NUMBERED = re.compile(r"level_?(\d+)_problem_(\d+)(?:_sample_(\d+))?")


def find(directory: Path) -> Iterator[Item]:
    """Every file with class ModelNew."""
    files, unreadable = python_files(directory)
    yield from unreadable
    tasks = {path: text for path, text in files if _is_task(text)}
    labels = labels_of(directory)
    for path, text in files:
        if _is_task(text):
            continue
        name = str(path.relative_to(directory).with_suffix(""))
        if not _KERNEL.search(text) and not _NUMBERED.search(path.stem):
            continue
        task = _task_of(path, tasks)
        if task is None:
            yield Item(name, path, text, unusable="no task with class Model and get_inputs belongs to it")
            continue
        yield Item(
            id=name,
            path=path,
            kernel=text,
            source=Source(text=tasks[task], name=task.stem, style="module"),
            argument=f"--reference {shlex.quote(str(task))}",
            label=labels.get(name, labels.get(path.stem, _label(path))),
        )


def _is_task(text: str) -> bool:
    return bool(_TASK.search(text) and _INPUTS.search(text) and not _KERNEL.search(text))


def _task_of(kernel: Path, tasks: dict[Path, str]) -> Path | None:
    if numbered := _NUMBERED.search(kernel.stem):
        level, number = numbered.group(1), numbered.group(2)
        for task in tasks:
            if task.parent.name.replace("_", "") == f"level{level}" and task.stem.split("_")[0] == number:
                return task
    named = [task for task in tasks if kernel.stem.startswith(task.stem)]
    if named:
        return max(named, key=lambda task: len(task.stem))
    beside = [task for task in tasks if task.parent == kernel.parent]
    return beside[0] if len(beside) == 1 else None


def _label(kernel: Path) -> Label:
    """`correctness` of the kernel's sample in eval_results.json."""
    results = kernel.parent / "eval_results.json"
    numbered = _NUMBERED.search(kernel.stem)
    if numbered is None or not results.is_file():
        return None
    data = read_json(results)
    entry: Any = data.get(numbered.group(2)) if isinstance(data, dict) else None
    samples = entry if isinstance(entry, list) else [entry]
    wanted = int(numbered.group(3) or 0)
    for sample in samples:
        if isinstance(sample, dict) and sample.get("sample_id", 0) == wanted:
            correct = sample.get("correctness")
            return correct if isinstance(correct, bool) else None
    return None

"""Small Kineto traces, made by hand: a few events in the form libkineto writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def event(category: str, name: str, start: float, duration: float, **more: Any) -> Event:
    """An event of the host's thread 1."""
    fields = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 1, "ts": start, "dur": duration}
    return {**fields, "args": {}, **more}


def op(name: str, start: float, duration: float, **args: Any) -> Event:
    """An operation."""
    return event(
        "cpu_op", name, start, duration, args={key.replace("_", " "): value for key, value in args.items()}
    )


def launch(correlation: int, start: float, name: str = "cudaLaunchKernel", **more: Any) -> Event:
    """A call that launches."""
    return event("cuda_runtime", name, start, 1.0, args={"correlation": correlation}, **more)


def kernel(correlation: int, start: float, duration: float = 2.0, name: str = "k", **args: Any) -> Event:
    """A kernel on device 0, stream 7."""
    given = {"device": 0, "stream": 7, "correlation": correlation} | {
        key.replace("_", " "): value for key, value in args.items()
    }
    return event("kernel", name, start, duration, pid=0, tid=7, args=given)


def step() -> list[Event]:
    """An operation within another within a range, and the kernel that the inner one launches."""
    dims = {"Input_Dims": [[2, 3], []], "Input_type": ["float", "Scalar"]}
    return [
        event("user_annotation", "step 1", 0, 100),
        op("aten::linear", 10, 50),
        op("aten::mm", 20, 30, **dims),
        launch(5, 25),
        kernel(5, 200),
    ]


def written(path: Path, events: Any, **header: Any) -> Path:
    """A trace file."""
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}))
    return path

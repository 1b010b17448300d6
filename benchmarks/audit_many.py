"""`atrex audit` over many small Triton kernels, killed on the way and resumed.

    python benchmarks/audit_many.py --count 200 --jobs 2 --output docs/results/cpu-audit-200.md

Writes COUNT kernels in KernelBench's format (a task and a ModelNew each, half of them with a fault), audits
them, sends SIGKILL to the whole process group when a third is done, resumes, and holds the ledger to what
must be there: one row a kernel, none lost, none twice. Exits with 1 if that does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from measured import called

# Functions of one tensor: in PyTorch, and of a value v in a kernel.
FUNCTIONS = {
    "relu": ("torch.relu(x)", "tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)"),
    "silu": ("x * torch.sigmoid(x)", "v / (1.0 + tl.exp(-v))"),
    "square": ("x * x", "v * v"),
    "scaled": ("x * 1.5 + 0.25", "v * 1.5 + 0.25"),
    "hardtanh": ("torch.clamp(x, -1.0, 1.0)", "tl.where(v < -1.0, -1.0, tl.where(v > 1.0, 1.0, v))"),
    "softplus": ("torch.log1p(torch.exp(-x.abs())) + torch.relu(x)",
                 "tl.log(1.0 + tl.exp(-tl.abs(v))) + tl.maximum(v, 0.0)"),
    "leaky": ("torch.where(x > 0, x, 0.01 * x)", "tl.where(v > 0, v, 0.01 * v)"),
    "absolute": ("x.abs()", "tl.abs(v)"),
    "negative": ("-x", "-v"),
    "gauss": ("torch.exp(-x * x)", "tl.exp(-v * v)"),
}  # fmt: skip
# What is done to a right kernel: nothing, or a replacement in its text.
FAULTS = {
    "": ("", ""),
    "tail_not_written": ("offsets < n,", "offsets < n - 1,"),
    "again_right": ("", ""),
    "block_skipped": ("triton.cdiv(n, 256)", "max(1, n // 256)"),
}
TASK = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return {eager}


def get_inputs():
    return [torch.randn({rows}, {columns})]


def get_init_inputs():
    return []
"""
KERNEL = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def {name}(out, x, n, B: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    v = tl.load(x + offsets, offsets < n, other=0.0)
    tl.store(out + offsets, {value}, offsets < n,)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        if n:
            {name}[(triton.cdiv(n, 256),)](out, x, n, B=256)
        return out
"""


def write(folder: Path, count: int) -> dict[str, bool]:
    """The kernels; which of them are right, by the audit's name of each."""
    right: dict[str, bool] = {}
    kinds = [(function, fault) for function in FUNCTIONS for fault in FAULTS]
    for number in range(count):
        function, fault = kinds[number % len(kinds)]
        eager, value = FUNCTIONS[function]
        place = folder / f"{number:03}_{function}{'_' + fault if fault else ''}"
        place.mkdir(parents=True)
        old, new = FAULTS[fault]
        source = KERNEL.format(name=f"k_{function}", value=value)
        (place / "task.py").write_text(TASK.format(eager=eager, rows=3 + number % 7, columns=190 + number))
        (place / "kernel.py").write_text(source.replace(old, new) if old else source)
        right[place.name] = not old
    return right


def audit(folder: Path, runs: Path, jobs: int, *extra: str) -> subprocess.Popen[bytes]:
    """The command in a process group of its own."""
    options = [
        "--format",
        "kernelbench",
        "--device",
        "cpu",
        "--jobs",
        str(jobs),
        "--runs",
        str(runs),
        "--json",
    ]
    command = [sys.executable, "-m", "atrex", "audit", str(folder), *options, *extra]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def rows(runs: Path) -> list[str]:
    """Kernels with a row in the only run's ledger, in its order."""
    found = []
    for ledger in runs.glob("*/ledger.jsonl"):
        for line in ledger.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            payload = entry["payload"]
            if "id" in payload and "state" in payload:
                found.append(str(payload["id"]))
    return found


def main() -> int:
    """Write, audit, kill, resume, count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, runs = Path(scratch) / "kernels", Path(scratch) / "runs"
        right = write(folder, asked.count)
        started = time.monotonic()
        first = audit(folder, runs, asked.jobs)
        while first.poll() is None and len(rows(runs)) < asked.count // 3:
            time.sleep(1)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        killed_at = len(rows(runs))
        again = audit(folder, runs, asked.jobs, "--resume", next(iter(runs.iterdir())).name)
        out, err = again.communicate()
        seconds = time.monotonic() - started
        whole = rows(runs)
        text = _page(asked, right, json.loads(out or b"{}"), killed_at, whole, seconds, again.returncode)
    print(text, err.decode()[-500:] if again.returncode else "")
    if asked.output:
        asked.output.write_text(text, encoding="utf-8")
    good = again.returncode == 0 and len(whole) == len(set(whole)) == asked.count
    return 0 if good else 1


def _page(
    asked: argparse.Namespace,
    right: dict[str, bool],
    report: dict[str, object],
    killed_at: int,
    whole: list[str],
    seconds: float,
    code: int,
) -> str:
    entries = report.get("rows")
    found = entries if isinstance(entries, list) else []
    counts = Counter((right.get(Path(str(one["id"])).parts[0]), str(one["state"])) for one in found)
    lines = [
        "# An audit of many small kernels in the interpreter",
        "",
        f"`{called(__file__)}`, {time.strftime('%Y-%m-%d')}, "
        f"{os.cpu_count()} cores: SIGKILL to all processes after {killed_at} rows, then `--resume`. Then "
        f"the ledger has {len(whole)} rows for {len(set(whole))} of {asked.count} kernels; exit code {code}; "
        f"{seconds / 60:.1f} min in all.",
        "",
        "| made | verdict | kernels |",
        "|---|---|---|",
    ]
    names = {True: "right", False: "with a fault", None: "?"}
    lines += [
        f"| {names[made]} | {verdict} | {count} |"
        for (made, verdict), count in sorted(counts.items(), key=str)
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

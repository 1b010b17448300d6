"""Crossed draws alone, of eager PyTorch or of kernels: how often they see a bug, or reject what is right.

    python benchmarks/crossed_draws.py --device cpu                      # eager PyTorch, every operator
    python benchmarks/crossed_draws.py --op causal_conv1d --times 4 K.py
    python benchmarks/crossed_draws.py --op mrope --draws 200 tests/honest/mrope/triton/*.py

A line for each judgement: the kernel, its seed, how many draws were decided, and what was seen. The exit
status says whether nothing was rejected.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from agent.proposers.baselines import eager
from atrex.candidate import Candidate, load_candidate
from atrex.commands.common import choose_device, operator_cases
from atrex.errors import run_script
from atrex.gates.context import Rejection
from atrex.gates.crossed import crossed
from atrex.gates.shapes import off_grid
from atrex.judge import Engine, new_seed
from atrex.problem import load_problem, operators, resolve_operator
from atrex.verify import gate_context


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge them all, one after the other."""
    parser = argparse.ArgumentParser(description="Crossed draws alone.")
    parser.add_argument("files", type=Path, nargs="*", help="kernels of --op; none: eager PyTorch")
    parser.add_argument("--op", action="append", type=resolve_operator, help="by default all")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--draws", type=int, help="in a judgement; by default as many as the full level makes"
    )
    parser.add_argument("--times", type=int, default=1, help="judgements of each kernel")
    asked = parser.parse_args(arguments)
    chosen = asked.op or list(operators())
    if asked.files and len(chosen) != 1:
        parser.error("files are kernels of one operator: name it with --op")
    kernels = [load_candidate(path, chosen[0]) for path in asked.files]
    names = [str(path) for path in asked.files] or chosen
    rejected = 0
    with Engine(choose_device(asked.device)) as engine:
        for name, kernel in zip(
            names, kernels or [eager(load_problem(op).spec) for op in chosen], strict=True
        ):
            for _ in range(asked.times):
                started, seed = time.monotonic(), new_seed()
                said, right = _judge(engine, kernel, seed, asked.draws)
                rejected += not right
                print(f"{name}  seed {seed}  {time.monotonic() - started:.1f} s  {said}", flush=True)
    return int(rejected > 0)


def _judge(engine: Engine, kernel: Candidate, seed: int, draws: int | None) -> tuple[str, bool]:
    """What the draws of one judgement see, and whether that is nothing."""
    with engine.session(kernel) as session:
        cases = operator_cases("atrex-bench", kernel.operator)
        ctx = gate_context("shapes", session, cases, "full", seed, "", lambda: session)
        ctx.plan = dataclasses.replace(ctx.plan, crossed=draws or ctx.plan.crossed)
        try:
            crossed(ctx, [*ctx.representatives(), *off_grid(ctx)])
        except Rejection as rejection:
            return f"REJECTED: {rejection.reason}", False
    return f"{ctx.metrics['crossed']} of {ctx.plan.crossed} decided, none rejected", True


if __name__ == "__main__":
    run_script(main)

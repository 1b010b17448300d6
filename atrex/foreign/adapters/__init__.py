"""Adapters: how kernels, references and labels lie in the directories of public collections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from atrex.foreign.adapters import atrex_bench, gpuemu, kernelbench, tritonbench
from atrex.foreign.adapters.item import Adapter

Format = Literal["kernelbench", "tritonbench-t", "kernelbenchx", "gpuemu", "atrex-bench"]

ADAPTERS: Mapping[Format, Adapter] = {
    "kernelbench": kernelbench.find,
    "tritonbench-t": tritonbench.find,
    "kernelbenchx": tritonbench.find,
    "gpuemu": gpuemu.find,
    "atrex-bench": atrex_bench.find,
}

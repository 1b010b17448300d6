"""Names of kernels, as far as rules need them read: mangled ones, and what Inductor fused."""

from __future__ import annotations

import re

_MANGLED = re.compile(r"^_ZN?K?(?=\d)")
_LENGTH = re.compile(r"\d{1,3}")
_INDUCTOR = re.compile(r"^triton_[a-z]{3,}_fused_(.*)$")  # poi, red, per, tem, for, mm, …
_NUMBERED = re.compile(r"_\d+$")


def readable(kernel: str) -> str:
    """The name; where a tool left it mangled, its namespaces and identifier in front, arguments as they were.

    Profilers give up demangling long template arguments: _ZN5aiter24add_rmsnorm_quant_kernelIDF16b… becomes
    aiter::add_rmsnorm_quant_kernel<IDF16b…. (Itanium C++ ABI, 5.1: a nested name is a sequence of
    identifiers, each after its length.)
    """
    if not (start := _MANGLED.match(kernel)):
        return kernel
    parts, position = list[str](), start.end()
    while found := _LENGTH.match(kernel, position):
        end = found.end() + int(found[0])
        parts.append(kernel[found.end() : end])
        position = end
    return "::".join(parts) + "<" + kernel[position:]


def fused_operations(kernel: str) -> str:
    """Operations that a kernel of Inductor's fuses, between underscores; empty for any other kernel.

    triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0 gives __to_copy_add_mean_mul_pow_rsqrt_. Names of
    operations have underscores too, so a name is looked for as `_name_`. (torch/_inductor/codegen/triton.py:
    a kind, the word fused, the sorted names of the fused nodes' origins, a number.)
    """
    if not (found := _INDUCTOR.match(kernel)):
        return ""
    return f"_{_NUMBERED.sub('', found[1])}_"

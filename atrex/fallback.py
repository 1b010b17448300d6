"""Who did the work: classes of PyTorch operations and of GPU kernels.

*Setup* allocates or only changes metadata, *glue* moves or fills data, *compute* is the work that a
candidate claims to do itself. Used by the `authenticity` gate.
"""

from __future__ import annotations

from typing import Literal

OpClass = Literal["setup", "glue", "compute"]
KernelOrigin = Literal["own", "glue", "library"]

_SETUP = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
        "alias",
        "as_strided",
        "detach",
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "expand",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "narrow",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "unflatten",
        "flatten",
        "diagonal",
        "view_as_real",
        "view_as_complex",
        "lift_fresh",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "record_stream",
        "is_pinned",
        "_pin_memory",
    }
)
_GLUE = frozenset(
    {
        "copy_",
        "clone",
        "_to_copy",
        "contiguous",
        "fill_",
        "zero_",
        "zeros",
        "zeros_like",
        "new_zeros",
        "ones",
        "ones_like",
        "new_ones",
        "full",
        "full_like",
        "new_full",
        "to",
        "_local_scalar_dense",
        "item",
    }
)
# Kernels that move or fill memory, as CUPTI names them.
_GLUE_KERNELS = ("memcpy", "memset", "fillfunctor", "direct_copy_kernel", "copy_kernel", "bfloat16_copy")


def classify_op(name: str) -> OpClass:
    """The class of an ATen operation such as `aten::mul.Tensor`; other libraries' are compute."""
    library, _, rest = name.rpartition("::")
    base = rest.split(".")[0]
    if library not in ("aten", ""):
        return "compute"
    if base in _SETUP:
        return "setup"
    return "glue" if base in _GLUE else "compute"


def classify_kernel(name: str, own: frozenset[str]) -> KernelOrigin:
    """The origin of a GPU kernel by its name, given the names of the candidate's own kernels."""
    if name in own:
        return "own"
    lowered = name.lower()
    return "glue" if any(part in lowered for part in _GLUE_KERNELS) else "library"

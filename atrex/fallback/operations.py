"""Classes of PyTorch operations and of GPU kernels: who did the work.

*Setup* allocates or only changes metadata, *glue* moves, casts or fills data, *compute* is the work that a
candidate claims to do itself. ATen names come from a dispatcher's trace, the names of methods and functions
from a source; both mean the same classes. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

OpClass = Literal["setup", "glue", "compute"]
KernelOrigin = Literal["own", "glue", "library"]


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_SETUP = names(
    """empty empty_like empty_strided new_empty new_empty_strided resize_ set_ alias as_strided detach
    view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze squeeze slice select
    narrow split split_with_sizes chunk unbind unfold unflatten flatten diagonal view_as_real view_as_complex
    promote_types result_type can_cast
    lift_fresh sym_size sym_stride sym_numel sym_storage_offset record_stream is_pinned _pin_memory"""
)
_GLUE = names(
    """copy_ clone _to_copy contiguous fill_ zero_ zeros zeros_like new_zeros ones ones_like new_ones
    full full_like new_full to _local_scalar_dense item cat stack arange"""
)
# What PyTorch's Python interface has beside ATen's names.
_SETUP_METHODS = _SETUP | names(
    """view_as expand_as reshape_as permute_copy movedim moveaxis swapaxes swapdims adjoint ravel
    swapdims_ hsplit vsplit dsplit tensor_split squeeze_ unsqueeze_ t_ transpose_ requires_grad_ detach_
    refine_names rename align_to share_memory_ retain_grad untyped_storage storage
    size stride dim numel nelement ndimension element_size storage_offset data_ptr is_contiguous
    is_floating_point is_complex is_signed get_device is_shared is_pinned is_set_to has_names
    register_hook backward new_tensor __len__ __repr__ __format__ __hash__ __dlpack__"""
)
_GLUE_METHODS = _GLUE | names(
    """float half bfloat16 double int long short byte bool char type type_as cpu cuda tolist numpy astype
    tobytes pin_memory clone copy_ to_dense __int__ __float__ __bool__ __index__"""
)
_SETUP_FUNCTIONS = _SETUP | names(
    """device Size Stream Event Generator finfo iinfo dtype is_tensor is_floating_point is_complex is_nonzero
    numel no_grad inference_mode enable_grad set_grad_enabled is_grad_enabled is_inference_mode_enabled
    get_default_dtype set_default_dtype set_default_device get_default_device manual_seed seed initial_seed
    broadcast_shapes result_type promote_types can_cast broadcast_to broadcast_tensors atleast_1d atleast_2d
    from_numpy from_dlpack frombuffer movedim moveaxis swapaxes swapdims ravel hsplit vsplit tensor_split
    unravel_index use_deterministic_algorithms set_float32_matmul_precision get_float32_matmul_precision
    are_deterministic_algorithms_enabled set_num_threads get_num_threads autocast is_autocast_enabled typename
    load save empty_permuted strided memory_format contiguous_format set_printoptions
    is_storage get_rng_state set_rng_state _assert"""
)
_GLUE_FUNCTIONS = _GLUE | names(
    """linspace logspace eye range rand randn randint randperm rand_like randn_like randint_like
    concat concatenate hstack vstack dstack column_stack normal tensor as_tensor asarray scalar_tensor
    tril_indices triu_indices meshgrid cartesian_prod"""
)
# Of torch: namespaces that prepare, observe or configure.
_SETUP_SPACES = names(
    """cuda version backends library utils autograd profiler compiler _dynamo _inductor types testing
    accelerator distributed random serialization hub overrides __config__ _logging futures storage
    Generator UntypedStorage mps xpu cpu _environment monitor package"""
)
# Attributes of a tensor that are no tensors.
METADATA = names(
    """shape dtype device layout ndim is_cuda is_cpu is_sparse is_quantized requires_grad is_leaf names
    itemsize nbytes grad_fn output_nr _version __class__ __dict__ ctypes is_meta
    __cuda_array_interface__ __array_interface__"""
)
VIEWS = names("T mT H mH data real imag grad _base")
# What a tensor gives to the host.
TO_HOST = names("item tolist tobytes __int__ __float__ __bool__ __index__ cpu numpy")
# On lengths and tables alone: what a wrapper needs to size its grid.
_ON_LENGTHS = names("max min amax amin aminmax sum prod any all add sub rsub diff")
# Kernels that move or fill memory, as CUPTI names them.
_GLUE_KERNELS = (
    "memcpy",
    "memset",
    "fillfunctor",
    "direct_copy_kernel",
    "copy_kernel",
    "bfloat16_copy",
    "catarraybatchedcopy",
)


def classify_op(name: str) -> OpClass:
    """The class of an ATen operation such as `aten::mul.Tensor`; other libraries' are compute."""
    library, _, rest = name.rpartition("::")
    base = rest.split(".")[0]
    if library not in ("aten", ""):
        return "compute"
    if base in _SETUP:
        return "setup"
    return "glue" if base in _GLUE else "compute"


def _plain_name(name: str) -> str:
    """`scale` of `void ns::scale<float>(float*, int)`, as CUPTI names kernels of C++."""
    return name.partition("(")[0].partition("<")[0].split("::")[-1].split(" ")[-1]


def permitted(name: str, allowed: Iterable[str]) -> bool:
    """Whether an operation, as ATen or Python names it, is one that a contract leaves to a library."""
    return _base(name) in {_base(one) for one in allowed}


def _base(name: str) -> str:
    """`mm` of aten::mm.out, of torch.mm and of torch.ops.aten.mm.default."""
    library, _, rest = name.rpartition("::")
    if library:
        return rest.partition(".")[0]
    parts = name.split(".")
    return parts[3] if parts[:3] == ["torch", "ops", "aten"] and len(parts) > 3 else parts[-1]


def on_lengths(name: str) -> bool:
    """Whether an ATen operation, if it sees nothing but lengths and tables, is still glue."""
    return name.rpartition("::")[2].split(".")[0] in _ON_LENGTHS


# CUPTI takes a kernel's name for a mangled one of C++, in which a letter is a type (Itanium ABI, 5.1.5.2).
_DEMANGLED = {
    "void": "v", "wchar_t": "w", "bool": "b", "char": "c", "signed char": "a", "unsigned char": "h",
    "short": "s", "unsigned short": "t", "int": "i", "unsigned int": "j", "long": "l", "unsigned long": "m",
    "long long": "x", "unsigned long long": "y", "__int128": "n", "unsigned __int128": "o", "float": "f",
    "double": "d", "long double": "e", "__float128": "g", "...": "z",
}  # fmt: skip


def classify_kernel(name: str, own: frozenset[str]) -> KernelOrigin:
    """The origin of a GPU kernel by its name, given the names of the candidate's own kernels."""
    if own & {name, _plain_name(name), _DEMANGLED.get(name, name)}:
        return "own"
    lowered = name.lower()
    return "glue" if any(part in lowered for part in _GLUE_KERNELS) else "library"


def classify_method(name: str) -> OpClass:
    """The class of a method of torch.Tensor by its name."""
    if name in _SETUP_METHODS:
        return "setup"
    return "glue" if name in _GLUE_METHODS else "compute"


def classify_function(path: str) -> OpClass:
    """The class of a function below `torch`, by its dotted path without "torch."."""
    parts = path.split(".")
    if parts[0] in _SETUP_SPACES or parts[:2] in (["nn", "init"], ["nn", "utils"], ["nn", "parameter"]):
        return "setup"
    if parts[0] == "Tensor" and len(parts) == 2:
        return classify_method(parts[1])
    if parts[0] == "ops" and parts[1:2] == ["aten"] and len(parts) > 2:
        return classify_op(f"aten::{parts[2]}")
    if len(parts) > 1:
        return "compute"
    if path in _SETUP_FUNCTIONS or path.startswith("is_"):
        return "setup"
    return "glue" if path in _GLUE_FUNCTIONS else "compute"

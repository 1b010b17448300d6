"""C++ and CUDA sources inside a file: kernels of their own, and what of a library they call."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from atrex.fallback.operations import names
from atrex.fallback.values import UNKNOWN, Const, Mapping, Native, Opaque, Seq, Value

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"')
_LAUNCH = re.compile(r"__global__|<<<|cudaLaunchKernel|\bfor\s*\(|\bwhile\s*\(")
_LIBRARY = re.compile(
    r"\b(cublas\w*|cudnn\w*|cusparse\w*|cusolver\w*|cutlass::\w+|thrust::\w+|mkl_\w+|dnnl::\w+|cblas_\w+)"
)
_ATEN = re.compile(
    r"\b(?:at|torch)::(?:native::|nn::functional::|_ops::|linalg::|special::)?([a-z_]\w*)\s*\("
)
_METHOD = re.compile(
    r"\.\s*(matmul|mm|bmm|addmm|mul_?|add_?|sub_?|div_?|sum|mean|softmax|relu_?|sigmoid_?|exp_?|sqrt_?|rsqrt_?|pow_?"
    r"|einsum|silu|gelu|tanh_?|norm|var|std|cumsum|sort|topk|amax|amin|argmax|scatter_?|gather|index_select"
    r"|index_add_?|scatter_add_?|clamp_?|square|conv1d|conv2d|abs)\s*\("
)
# Of at:: and torch::, what allocates, views, copies or asks.
_PLAIN = names(
    """empty empty_like empty_strided zeros zeros_like ones ones_like full full_like tensor from_blob
    arange tensoroptions device dtype check elementsize toscalartype iscontiguous cat_check
    getcurrentcudastream checked_cast is_floating_type promote_types kfloat khalf cuda_check
    globalcontext scalar optional get_num_threads parallel_for divup get_default_dtype as_strided narrow
    slice select transpose view reshape permute contiguous clone copy_ to record_stream"""
)


def judged(r: Reader, text: str, name: str, node: ast.AST) -> Native:
    """A module made of a source text."""
    plain = _TEXT.sub('""', _COMMENT.sub(" ", text))
    found = dict.fromkeys(_LIBRARY.findall(plain))
    for operation in _ATEN.findall(plain):
        if operation.lower() not in _PLAIN:
            found[f"at::{operation}"] = None
    if re.search(r"\b(?:at|torch)::Tensor\b|torch/extension|ATen/", text):
        for method in _METHOD.findall(plain):
            found[f"at::Tensor.{method}"] = None
    kernel = r.define(name, node, python=False) if _LAUNCH.search(plain) else None
    return Native(kernel, tuple(found))


def _sources(values: list[Value]) -> str | None:
    """All of the texts together; None if one is not known."""
    parts = list[str]()
    for value in values:
        match value:
            case Const(value=str() as text):
                parts.append(text)
            case Const(value=None):
                continue
            case Seq(items=items):
                inner = _sources(items)
                if inner is None:
                    return None
                parts.append(inner)
            case _:
                return None
    return "\n".join(parts)


def load_inline(r: Reader, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
    """torch.utils.cpp_extension.load_inline(name, cpp_sources, cuda_sources, …)."""
    given = [
        *args[1:3],
        *(keywords[key] for key in ("cpp_sources", "cuda_sources", "sycl_sources") if key in keywords),
    ]
    text = _sources(given)
    if text is None or not given:
        return Opaque("a C++ or CUDA source that is computed")
    name = args[0] if args else keywords.get("name", UNKNOWN)
    return judged(r, text, str(name.value) if isinstance(name, Const) else "inline source", node)


def compiled(r: Reader, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
    """atrex.dsl.cpp.compile(source, signatures)."""
    text = _sources(args[:1] or [keywords.get("source", UNKNOWN)])
    if text is None:
        return Opaque("a C++ source that is computed")
    signatures = args[1] if len(args) > 1 else keywords.get("signatures", UNKNOWN)
    names = [str(key) for key in signatures.items] if isinstance(signatures, Mapping) else []
    return judged(r, text, names[0] if names else "C++", node)


def raw_module(r: Reader, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
    """cupy.RawModule(code=…): its functions are kernels."""
    text = _sources(args[:1] or [keywords.get("code", UNKNOWN)])
    return (
        judged(r, text, "raw module", node) if text is not None else Opaque("a CUDA source that is computed")
    )

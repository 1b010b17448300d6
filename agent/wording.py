"""A problem in plain words, for whoever writes its kernel: in a model's prompt or a tool's TASK.md."""

from __future__ import annotations

from typing import get_args

from atrex.contract import Contract, InputTensor, LayoutKind, OutputTensor, ProblemSpec


def returned(spec: ProblemSpec) -> str:
    """What `forward` returns."""
    names = ", ".join(f"`{name}`" for name in spec.outputs)
    kinds = {"tensor": "the tensor", "dict": "a dict with", "tuple": "a tuple of"}
    return f"{kinds[spec.returns]} {names}"


def place(tensor: InputTensor | OutputTensor) -> str:
    """Its shape, in the names of dimensions."""
    return f"[{', '.join(map(str, tensor.shape))}]"


def role(tensor: InputTensor) -> str:
    """What an input is, and which values it may hold."""
    text = {
        "data": "input, differs from call to call",
        "parameter": "input, constant between steps of a model (its contents may still change)",
        "lengths": "input, how a packed dimension is divided",
        "index": "input, indices",
    }[tensor.role]
    if tensor.index is not None:
        also = f", or {', '.join(map(str, tensor.index.also))}" if tensor.index.also else ""
        distinct = ", none twice" if tensor.index.distinct else ""
        text += f" from 0 up to (not including) {tensor.index.below}{also}{distinct}"
    return text + ("; may be None" if tensor.optional else "")


def compared(tensor: OutputTensor) -> str:
    """How an output is held against the exact one."""
    how = {
        "bound": "within an error bound",
        "exact": "exact, bit for bit",
        "checked": "any of several right answers",
    }[tensor.compare]
    return how + ("; its first extent depends on the values" if tensor.bounded else "")


def extents(spec: ProblemSpec) -> tuple[tuple[str, str], ...]:
    """Legal extents by name of the dimension; of a list of lengths, those of each."""
    found = []
    for name, dim in {**spec.dims, **spec.lengths}.items():
        each = "each " if name in spec.lengths else ""
        step = f", in steps of {dim.multiple_of}" if dim.multiple_of > 1 else ""
        found.append((name, f"{each}{dim.min} to {dim.max}{step}"))
    return tuple(found)


def contract_lines(contract: Contract) -> tuple[str, ...]:
    """What a kernel must keep beyond its formula, a line each."""
    lines = [
        f"sums are kept in {contract.accumulator} and rounded once to the output's dtype: a narrower "
        "accumulator, TF32 or an extra rounding fails"
    ]
    if contract.reduced:
        lines.append(f"the error bound grows with the extent of {contract.reduced}, which is summed over")
    lines.append(
        "the same inputs give the same bits in every run"
        if contract.deterministic
        else "runs may differ in their last bits; each must be within the bound"
    )
    lines += _layouts(contract)
    lines.append("every element of every output is written; nothing outside the tensors is read or written")
    if contract.specials:
        names = ", ".join(contract.specials)
        lines.append(f"NaN, infinities, -0 and subnormals in {names} travel as in the formula")
    if contract.updates:
        pairs = ", ".join(f"{name} (returned as {out})" for name, out in contract.updates.items())
        lines.append(f"may be updated in place: {pairs}; no other input may change")
    else:
        lines.append("inputs stay untouched, and outputs share no memory with them")
    if contract.may_be_unsupported:
        refused = ", ".join(contract.may_be_unsupported)
        lines.append(f"may be refused with NotImplementedError: {refused}")
    if contract.library_calls:
        lines.append(f"may be left to a library: {', '.join(contract.library_calls)}")
    return tuple(lines)


def _layouts(contract: Contract) -> list[str]:
    must, refuse = contract.layouts.must, contract.layouts.may_refuse
    lines = [f"layouts that must work: {', '.join(('contiguous', *must))}"]
    if refuse:
        lines.append(f"layouts that may be refused with NotImplementedError: {', '.join(refuse)}")
    if never := sorted(set(get_args(LayoutKind)) - {"contiguous", *must, *refuse}):
        lines.append(f"never seen: {', '.join(never)}")
    return lines

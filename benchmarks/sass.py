"""Reading NVIDIA's machine code, as `nvdisasm -c` lists it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNIFORM = re.compile(r"\bUR(\d+)\b")
_INSTRUCTION = re.compile(r"(?:@!?U?P[T\d]+ )?([A-Z0-9_.]+)\s*(.*)")


def read_before_written(sass: Sequence[str]) -> list[str]:
    """Instructions that read a uniform register before any earlier one in the text has written it.

    Blocks follow one another in the order of their text but for loops back, so what precedes nothing in the
    text is written nowhere on the way. `sass`: lines of `nvdisasm -c` without their comments.
    """
    written, found = set[int](), list[str]()
    for line in sass:
        match = _INSTRUCTION.match(line.strip().rstrip(";").strip())
        if not match or line.strip().startswith((".", "//")):
            continue
        operation, operands = match[1], [operand.strip() for operand in match[2].split(",")]
        targets = _targets(operation, operands[0])
        if _sources(operation, operands[1:] if targets else operands) - written:
            found.append(line.strip())
        written |= targets
    return found


def _targets(operation: str, first: str) -> set[int]:
    match = re.fullmatch(r"UR(\d+)", first)
    if not match:
        return set()
    register = int(match[1])
    return {register, register + 1} if ".64" in operation or "WIDE" in operation else {register}


def _sources(operation: str, operands: Sequence[str]) -> set[int]:
    if "GMMA" in operation:  # four registers: where A is, unless it is in registers itself, and where B is
        place, descriptor = next((i, each) for i, each in enumerate(operands) if each.startswith("gdesc["))
        first = int(_UNIFORM.findall(descriptor)[0])
        return set(range(first if place == 1 else first + 2, first + 4))
    read = {int(register) for operand in operands for register in _UNIFORM.findall(operand)}
    if operation.startswith("U") and ".64" in operation and not operation.startswith("ULDC"):
        read |= {register + 1 for register in read}
    return read

"""From recorded shapes to an operator's case: the small language of `case:` and `where:` in rules.yaml.

    token_count: rows(dims(1))            product of all extents of input 1 but the last
    hidden_size: dims(1)[-1]
    seq_lens: runs(dims(1)[2], dims(0)[0])
    group_size: dims(0)[-1] / dims(2)[-1]

An expression is made of integers, 'texts', + - * / (exact: the quotient is whole), parentheses, an index, and

    dims(i), dims(i, j)   extents of the operation's input i; of the jth tensor of a list of tensors
    ranked(r)             extents of the first input with r extents
    largest()             extents of the first input with the most elements
    rows(x), last(x), size(x), rank(x)     of extents x: all but the last multiplied, the last, all, how many
    dtype(i)              bf16, fp16, fp32, fp64, fp8, int32, int64, … of input i
    runs(n, k)            k sequences of length n: [[n, k]]
    pair(a, b)            two extents: [a, b]
    query_lens(), key_lens()               of the sequences, where the step's annotation fixes them
    scalar(i)             the operation's scalar input i: a number, a truth value, a list of integers
    option(i)             the same; where it was not recorded, the argument is left out of the case
    absent(i)             1 if input i was left out of the call, else 0

`where:` compares two of them: dims(0)[-1] <= 512; True is 1. Nothing here runs Python: an expression is
parsed once, and what it needs and the trace does not hold is `Unknown`, with the reason.
"""

from __future__ import annotations

import math
import operator as operators
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from traces.recorded import Extents, LeftOut, Recorded, Unknown
from traces.scalars import Value, value

Result = int | float | str | list[Any] | tuple[Any, ...]

_MOST_EXPRESSION = 200
_MOST_SEQUENCES = 1 << 20  # of a batch: a case lists the length of each

# As torch's profiler names them (c10::toString of scalar types).
_DTYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "unsigned char": "uint8",
    "signed char": "int8",
    "bool": "bool",
}


# -- functions of the language ---------------------------------------------------------------------


def _dims(from_: Recorded, index: int, inner: int | None = None) -> Extents:
    if index >= len(from_.dims):
        raise Unknown(f"the operation has no input {index}")
    found = from_.dims[index]
    if inner is not None:
        found = found[inner] if inner < len(found) and isinstance(found[inner], tuple) else None
    if not isinstance(found, tuple) or not all(isinstance(extent, int) for extent in found) or not found:
        raise Unknown(f"input {index} is no tensor")
    return found


def _tensors(from_: Recorded) -> list[Extents]:
    """Extents of all inputs that are one tensor."""
    return [x for x in from_.dims if x and all(isinstance(extent, int) for extent in x)]


def _ranked(from_: Recorded, rank: int) -> Extents:
    for extents in _tensors(from_):
        if len(extents) == rank:
            return extents
    raise Unknown(f"no input has {rank} extents")


def _largest(from_: Recorded) -> Extents:
    if tensors := _tensors(from_):
        return max(tensors, key=math.prod)
    raise Unknown("the operation has no tensor")


def _dtype(from_: Recorded, index: int) -> str:
    name = from_.dtypes[index] if index < len(from_.dtypes) else ""
    if name not in _DTYPES:
        raise Unknown(f"the type of input {index} is not known")
    return _DTYPES[name]


def _scalar(from_: Recorded, index: int) -> Result:
    text = from_.scalars[index] if index < len(from_.scalars) else ""
    found: Value = value(text) if text else None
    if found is None:
        raise LeftOut(f"scalar input {index} was not recorded")
    good = all(type(one) is int for one in found) if isinstance(found, tuple) else math.isfinite(found)
    if not good:
        raise Unknown(f"scalar input {index} is {text}")
    return found


def _must(function: Callable[[Recorded, int], Result]) -> Callable[[Recorded, int], Result]:
    """The function, for which what was not recorded is unknown and cannot be left out."""

    def call(from_: Recorded, index: int) -> Result:
        try:
            return function(from_, index)
        except LeftOut as reason:
            raise Unknown(str(reason)) from None

    return call


def _absent(from_: Recorded, index: int) -> int:
    """Whether an optional input was not given: it has neither extents, type nor value."""
    if index >= min(len(from_.dims), len(from_.dtypes)):
        raise Unknown(f"the operation has no input {index}")
    text = from_.scalars[index] if index < len(from_.scalars) else ""
    return int(not (from_.dims[index] or from_.dtypes[index] or text))


def _runs(_from: Recorded, length: int, repeat: int) -> list[list[int]]:
    if type(length) is not int or type(repeat) is not int:
        raise Unknown("lengths are whole numbers")
    if repeat > _MOST_SEQUENCES:
        raise Unknown(f"{repeat} sequences are more than any batch has")
    return [[length, repeat]]


def _pair(_from: Recorded, first: int, second: int) -> Extents:
    return (first, second)


def _query_lens(from_: Recorded) -> list[list[int]]:
    return _lengths(from_, "query_lens")


def _key_lens(from_: Recorded) -> list[list[int]]:
    return _lengths(from_, "key_lens")


def _lengths(from_: Recorded, name: str) -> list[list[int]]:
    part = from_.step.part if from_.step is not None else None
    if part is None:
        raise Unknown("the lengths of the sequences are not in the shapes, nor in a step's annotation")
    try:
        lengths = part.query_lens() if name == "query_lens" else part.key_lens()
    except ValueError as error:
        raise Unknown(str(error)) from None
    return [[length, sum(1 for _ in group)] for length, group in groupby(lengths)]


def _of_extents(function: Callable[[Extents], int]) -> Callable[[Recorded, Extents], int]:
    def call(_from: Recorded, extents: Extents) -> int:
        if not isinstance(extents, tuple):
            raise Unknown("no extents")
        return function(extents)

    return call


_FUNCTIONS: dict[str, tuple[Callable[..., Result], tuple[int, ...]]] = {
    "dims": (_dims, (1, 2)),
    "ranked": (_ranked, (1,)),
    "largest": (_largest, (0,)),
    "rows": (_of_extents(lambda x: math.prod(x[:-1])), (1,)),
    "last": (_of_extents(lambda x: x[-1]), (1,)),
    "size": (_of_extents(math.prod), (1,)),
    "rank": (_of_extents(len), (1,)),
    "dtype": (_dtype, (1,)),
    "scalar": (_must(_scalar), (1,)),
    "option": (_scalar, (1,)),
    "absent": (_absent, (1,)),
    "runs": (_runs, (2,)),
    "pair": (_pair, (2,)),
    "query_lens": (_query_lens, (0,)),
    "key_lens": (_key_lens, (0,)),
}
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operators.add,
    "-": operators.sub,
    "*": operators.mul,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operators.eq,
    "!=": operators.ne,
    "<=": operators.le,
    ">=": operators.ge,
    "<": operators.lt,
    ">": operators.gt,
}

# -- the parser ------------------------------------------------------------------------------------

Expression = Callable[[Recorded], Result]
Condition = Callable[[Recorded], bool]

_TOKEN = re.compile(r"\s*(?:(\d+)|'([^']*)'|([a-z_]+)|([-+*/()\[\],]))")


class _Parser:
    """Recursive descent over one expression. Every method raises ValueError where the text is not one."""

    def __init__(self, text: str) -> None:
        if len(text) > _MOST_EXPRESSION:
            raise ValueError(f"an expression of {len(text)} characters; at most {_MOST_EXPRESSION}")
        self.text, self.tokens = text, list[tuple[str, str]]()
        position, end = 0, len(text.rstrip())
        while position < end:
            if not (found := _TOKEN.match(text, position)):
                raise ValueError(f"{text!r}: cannot be read from {text[position:]!r} on")
            kind = ("number", "text", "name", "sign")[(found.lastindex or 1) - 1]
            self.tokens.append((kind, found[found.lastindex or 1]))
            position = found.end()

    def whole(self) -> Expression:
        found = self._sum()
        if self.tokens:
            raise ValueError(f"{self.text!r}: {self.tokens[0][1]!r} is too much")
        return found

    def _next(self, *signs: str) -> str:
        """The next token, if it is one of these signs; else empty, and it stays."""
        if self.tokens and self.tokens[0][0] == "sign" and self.tokens[0][1] in signs:
            return self.tokens.pop(0)[1]
        return ""

    def _expect(self, sign: str) -> None:
        if not self._next(sign):
            raise ValueError(f"{self.text!r}: {sign!r} is missing")

    def _sum(self) -> Expression:
        found = self._product()
        while sign := self._next("+", "-"):
            found = _binary(sign, found, self._product())
        return found

    def _product(self) -> Expression:
        found = self._indexed()
        while sign := self._next("*", "/"):
            found = _binary(sign, found, self._indexed())
        return found

    def _indexed(self) -> Expression:
        found = self._atom()
        while self._next("["):
            minus = self._next("-")
            found = _indexed(found, int(minus + self._number()))
            self._expect("]")
        return found

    def _number(self) -> str:
        if not self.tokens or self.tokens[0][0] != "number":
            raise ValueError(f"{self.text!r}: an index is an integer")
        return self.tokens.pop(0)[1]

    def _atom(self) -> Expression:
        if self._next("("):
            found = self._sum()
            self._expect(")")
            return found
        kind, value = self.tokens.pop(0) if self.tokens else ("", "")
        if kind == "number":
            return _constant(int(value))
        if kind == "text":
            return _constant(value)
        if kind == "name":
            return self._call(value)
        raise ValueError(f"{self.text!r}: a value is missing")

    def _call(self, name: str) -> Expression:
        if name not in _FUNCTIONS:
            raise ValueError(f"{self.text!r}: no function {name!r}; known: {', '.join(_FUNCTIONS)}")
        function, counts = _FUNCTIONS[name]
        self._expect("(")
        arguments = list[Expression]()
        while not self._next(")"):
            if arguments:
                self._expect(",")
            arguments.append(self._sum())
        if len(arguments) not in counts:
            raise ValueError(f"{self.text!r}: {name} takes {' or '.join(map(str, counts))} arguments")
        return lambda from_: function(from_, *(argument(from_) for argument in arguments))


def _constant(value: int | str) -> Expression:
    return lambda _from: value


def _indexed(of: Expression, index: int) -> Expression:
    def found(from_: Recorded) -> Result:
        values = of(from_)
        if not isinstance(values, tuple) or not -len(values) <= index < len(values):
            raise Unknown(f"no extent {index} in {list(values) if isinstance(values, tuple) else values}")
        one: Result = values[index]
        return one

    return found


def _binary(sign: str, left: Expression, right: Expression) -> Expression:
    def found(from_: Recorded) -> Result:
        a, b = left(from_), right(from_)
        if type(a) is not int or type(b) is not int:
            raise Unknown(f"{sign} of what is no integer")
        if sign != "/":
            return _ARITHMETIC[sign](a, b)
        if not b or a % b:
            raise Unknown(f"{a} / {b} is not whole")
        return a // b

    return found


def parse_expression(text: str) -> Expression:
    """The expression of a text; it raises Unknown when called. Raises ValueError."""
    return _Parser(text).whole()


def parse_condition(text: str) -> Condition:
    """The comparison of a text, which does not hold where a side is unknown. Raises ValueError."""
    for sign, compare in _COMPARISONS.items():
        left, found, right = text.partition(sign)
        if found:
            return _compared(parse_expression(left), compare, parse_expression(right))
    raise ValueError(f"{text!r} compares nothing: use one of {' '.join(_COMPARISONS)}")


def _compared(left: Expression, compare: Callable[[Any, Any], bool], right: Expression) -> Condition:
    def holds(from_: Recorded) -> bool:
        try:
            return bool(compare(left(from_), right(from_)))
        except (Unknown, TypeError):
            return False

    return holds


def plain(value: Result) -> int | float | str | list[Any]:
    """A result as a workload holds it."""
    return list(value) if isinstance(value, tuple) else value


def evaluate(expressions: Sequence[tuple[str, Expression]], from_: Recorded) -> dict[str, Any]:
    """The value of each name. Raises Unknown, naming the first that the trace does not hold."""
    found = dict[str, Any]()
    for name, expression in expressions:
        try:
            found[name] = plain(expression(from_))
        except LeftOut:
            continue
        except Unknown as reason:
            raise Unknown(f"{name}: {reason}") from None
        except (TypeError, IndexError, OverflowError):
            raise Unknown(f"{name}: not in the shapes") from None
    return found

"""Legal inputs for the witness search: other draws than the gates', though of the same kinds.

A trial is one call on inputs that every right kernel must take: production draws and probes, shapes off the
grid, constructor arguments anywhere in their domain, layouts, scales, special values. Fresh memory is
poisoned and inputs lie between guard bands, both of which a legal caller may do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atrex.gates.context import GateContext, nearest_legal
from atrex.problem import Problem
from atrex.protocol import SPECIALS, Call, Edit, InputSpec
from atrex.records import InitValue, Shape

_FEW = 4
_CHEAP = 2000  # elements of the shape on which most kinds of inputs are tried first
_EXPONENTS = (-6, 5)
# Without the largest number: its square overflows fp32, and for what follows there is a class but no bound.
_SPECIALS = tuple(name for name in SPECIALS if name != "max")


@dataclass(frozen=True, slots=True)
class Trial:
    """One legal call. `may_refuse` says that the contract lets a kernel refuse its layout."""

    spec: InputSpec
    may_refuse: bool = False

    @property
    def call(self) -> Call:
        """The call as the worker makes it."""
        return Call(inputs=self.spec, poison="nan", guard_outputs=True)

    @property
    def label(self) -> str:
        """Its inputs in a few words."""
        return f"{self.spec.label() or 'production'} at {self.spec.shape.label()}"


class Drawer:
    """Draws trials for an operator; the same dice give the same trials."""

    def __init__(self, context: GateContext, dice: random.Random) -> None:
        self.context, self.dice = context, dice
        self.problem: Problem = context.problem

    def trials(self) -> Iterator[Trial]:
        """The trials, those that show most first."""
        base = self.context.representatives()
        odd = self._odd()
        rich = self.context.rich_source
        probes = [name for group in self.problem.probes.values() for name in group if name != rich]
        yield self._trial(min(base, key=self.context.work), "production")
        for shape in odd[:_FEW]:
            yield self._trial(shape, rich)
        cheap = min(
            odd or base, key=lambda shape: abs(math.log2(max(1, self.problem.elements(shape)) / _CHEAP))
        )
        large = max(odd or base, key=self.problem.elements)  # a kernel may take another path there
        for shape in (cheap, large, base[0]):
            for name in probes:
                yield self._trial(shape, name)
            yield from self._inits(shape, rich)
            yield from self._layouts(shape, rich)
            yield from self._edits(shape, rich)
            for other in base if shape is large else odd[_FEW:] if shape is cheap else ():
                yield self._trial(other, rich)
        for shape in (*self._cases(), *odd[:_FEW]):
            for source in ("production", rich, *probes):
                yield self._trial(shape, source)

    def _trial(
        self,
        shape: Shape,
        source: str,
        *,
        may_refuse: bool = False,
        edits: tuple[Edit, ...] = (),
        **layouts: str,
    ) -> Trial:
        spec = InputSpec.model_validate(
            {
                "shape": shape.model_dump(),
                "seed": self.dice.randrange(1 << 48),
                "source": source,
                "edits": [edit.model_dump() for edit in edits],
                "layouts": layouts,
                "guard": "nan",
            }
        )
        return Trial(spec, may_refuse)

    def _odd(self) -> list[Shape]:
        """Shapes off the production grid: those that the problem names, and freely drawn extents and rows."""
        named = [shape for shape in self.problem.odd() if self._affordable(shape)]
        drawn = [self._rows_of(shape) for shape in named[:_FEW]] if named else self._free()
        shapes = [*drawn, *named]
        self.dice.shuffle(shapes)
        return shapes

    def _free(self) -> list[Shape]:
        """Any extents, where a problem may be swept freely."""
        base, shapes = self.context.representatives()[0], list[Shape]()
        for top in (3, 40, 300, 1100, 2100, 5000, 9000, 20000, 70000):
            extents = {
                name: nearest_legal(legal, self.dice.randrange(top // 2, top))
                for name, legal in self.problem.spec.dims.items()
                if name != self.problem.rows
            }
            shapes.append(self._rows_of(self.problem.resize(base, **extents)))
        return shapes

    def _rows_of(self, shape: Shape) -> Shape:
        """The shape with another number of rows, where rows are independent."""
        rows = self.problem.rows
        if rows is None:
            return shape
        wanted = self.dice.choice((1, 2, 3, 5, 7, 17, 31, 33, 65))
        legal = nearest_legal(self.problem.spec.dims[rows], wanted)
        return self.problem.resize(shape, **{rows: self.context.fit_rows(shape, legal)})

    def _affordable(self, shape: Shape) -> bool:
        return self.problem.elements(shape) <= self.context.plan.called_elements

    def _cases(self) -> list[Shape]:
        """Some production cases, reduced, with other rows."""
        cases = list(self.context.cases)
        chosen = self.dice.sample(cases, min(_FEW, len(cases)))
        return [self._rows_of(self.problem.shape(self.problem.small(case))) for case in chosen]

    def _inits(self, shape: Shape, source: str) -> Iterator[Trial]:
        """Constructor arguments at an end of their domain and within it."""
        for name, spec in self.problem.spec.init.items():
            values: list[InitValue] = [*spec.choices]
            if spec.type == "float" and spec.min is not None and spec.max is not None:
                values += [spec.max, spec.min + (spec.max - spec.min) * self.dice.random() / 16]
            values += [False, True] if spec.type == "bool" else []
            for value in values:
                yield self._trial(self.problem.with_init(shape, **{name: value}), source)

    def _layouts(self, shape: Shape, source: str) -> Iterator[Trial]:
        """Every input in every layout that must work or may be refused."""
        layouts = self.problem.contract.layouts
        for name, declared in self.problem.spec.inputs.items():
            for kind in (*layouts.must, *layouts.may_refuse):
                vector = len(declared.shape) < 2 and kind not in ("offset", "strided")
                table = kind == "expanded" and declared.role in ("index", "lengths")
                if not (declared.optional or vector or table):
                    edits = (Edit(kind="broadcast_rows", input=name),) if kind == "expanded" else ()
                    refusable = kind in layouts.may_refuse
                    yield self._trial(shape, source, may_refuse=refusable, edits=edits, **{name: kind})

    def _edits(self, shape: Shape, source: str) -> Iterator[Trial]:
        """Floating data scaled by powers of two; special values at places drawn anywhere."""
        for name, tensor in self.problem.spec.inputs.items():
            dtype = self.problem.tensor_dtype(tensor, shape)
            wide = dtype.is_floating_point and dtype.itemsize > 1
            if wide and tensor.role == "data" and not tensor.optional:
                for exponent in _EXPONENTS:
                    yield self._trial(
                        shape, source, edits=(Edit(kind="scale", input=name, exponent=exponent),)
                    )
        for name in self.problem.contract.specials:
            size = math.prod(self.problem.tensor_shape(self.problem.spec.inputs[name], shape))
            if size:
                at = tuple(sorted({self.dice.randrange(size) for _ in _SPECIALS}))
                values: Sequence[str] = _SPECIALS[: len(at)]
                edit = Edit.model_validate({"kind": "place", "input": name, "at": at, "values": values})
                yield self._trial(shape, source, edits=(edit,))

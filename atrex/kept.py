"""What timed calls left behind, against the judge's own: a fast call must also be a right one.

Some rows of every set are negated in place before: a kernel that began to remember results while it was
timed, even one that looks at a part of its inputs before it trusts its memory, gives the old ones. Passes
are then timed by a request like every other. Other rows are negated after: who computes only when outputs are
fetched gives the new ones. All of it happens twice: once the outputs are overwritten before, so that a call
must write them, and once they are not, so that nothing tells a call that it will be looked at.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from atrex.gates.comparators import IllConditionedError
from atrex.gates.outputs import judge_outputs
from atrex.inputs import build_inputs, negations, touches, window_spec
from atrex.judge import CandidateFault, Session
from atrex.problem import Problem
from atrex.protocol import Edit, InputSpec, Round
from atrex.records import FaultKind

_ROWS = 64  # of a large output


@dataclass(frozen=True, slots=True)
class Kept:
    """The check of one contestant's timed outputs; `spec` and `seeds` are what its sets were made of."""

    session: Session
    problem: Problem
    spec: InputSpec
    seeds: tuple[int, ...]
    passes: int  # of a timed round
    dice: random.Random = field(default_factory=random.SystemRandom)

    def check(self) -> None:
        """Look at two rounds. Raises CandidateFault, of kind WRONG, for an output that is not right."""
        start, count = self._rows()
        updated = self.problem.contract.updates
        done: tuple[Edit, ...] = ()
        for spoil in (True, False):
            before, after = self._changes(start, count), self._changes(start, count)
            self._round(passes=0, restore=True, spoil=spoil, edits=before)
            done = (*(edit for edit in done if edit.input not in updated), *before)
            self._round(passes=1 if updated else self.passes)  # more would update a state more than once
            after = tuple(edit for edit in after if edit.input not in updated)
            self._round(passes=0, edits=after)
            self._judge(done, start, count)
            done += after

    def _round(self, **wanted: Any) -> None:
        self.session.round(Round(**wanted))

    def _rows(self) -> tuple[int, int]:
        """The rows that are looked at: first, and how many."""
        rows = self.spec.dims[self.problem.rows] if self.problem.rows else 1
        if self.spec.tile_rows is None:
            return 0, rows
        count = min(rows, _ROWS)
        return self.dice.randrange(rows - count + 1), count

    def _changes(self, start: int, count: int) -> tuple[Edit, ...]:
        row = start + self.dice.randrange(max(1, count))
        edits = negations(self.problem, self.spec.shape, self.dice, row=row)
        return edits if self.spec.tile_rows else edits + touches(self.problem, self.spec.shape, self.dice)

    def _judge(self, edits: tuple[Edit, ...], start: int, count: int) -> None:
        """One randomly chosen set, whose inputs the call saw after these edits."""
        problem, index = self.problem, self.dice.randrange(len(self.seeds))
        nbytes = sum(problem.nbytes(out, self.spec.shape) + 64 for out in problem.spec.outputs.values())
        outputs: Mapping[str, Tensor] = self.session.keep(index, nbytes).outputs
        self._require_form(outputs)
        ours = self.spec.model_copy(update={"seed": self.seeds[index]})
        if self.spec.tile_rows is not None:
            ours, edits = window_spec(problem, ours, start, count), self._seen_from(start, edits)
            sliced = problem.row_outputs()
            outputs = {n: got[start : start + count] if n in sliced else got for n, got in outputs.items()}
        ours = ours.model_copy(update={"edits": (*ours.edits, *edits)})
        inputs, _ = build_inputs(problem, ours, self.session.engine.torch_device)
        try:
            found, _ = judge_outputs(problem, ours.shape, inputs, dict(outputs))
        except IllConditionedError:
            return  # the accuracy gate has said so already; a timed call cannot be judged either
        if found:
            name, mismatch = found
            raise CandidateFault(FaultKind.WRONG, f"a timed call gave {name} {mismatch.what}")

    def _seen_from(self, start: int, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """The edits, their rows counted from the window's first."""
        rows = self.problem.row_inputs()
        return tuple(e.model_copy(update={"at": (e.at[0] - start,)}) if e.input in rows else e for e in edits)

    def _require_form(self, outputs: Mapping[str, Tensor]) -> None:
        problem, shape = self.problem, self.spec.shape
        if set(outputs) != set(problem.spec.outputs):
            raise CandidateFault(FaultKind.WRONG, "a timed call left none of the declared form")
        for name, declared in problem.spec.outputs.items():
            form, got = problem.tensor_shape(declared, shape), outputs[name]
            right = got.shape == form or (declared.bounded and got.shape[1:] == form[1:])
            if not right or got.dtype != problem.tensor_dtype(declared, shape):
                raise CandidateFault(FaultKind.WRONG, "a timed call left one of another form")

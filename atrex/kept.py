"""What timed calls left behind, against the judge's own: a fast call must also be a right one.

Some rows of every set are negated in place before: a kernel that began to remember results while it was
timed, even one that looks at a part of its inputs before it trusts its memory, gives the old ones. Passes
are then timed by a request like every other. Other rows are negated after: who computes only when outputs are
fetched gives the new ones. All of it happens twice: once the outputs are overwritten before, so that a call
must write them, and once they are not, so that nothing tells a call that it will be looked at.

A memory that looks at all of its inputs is always right, and fast where the same inputs are timed again and
again. It is seen by changing one element: what was seen before may not take much less time than what was not.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from atrex.gates.comparators import IllConditionedError
from atrex.gates.context import form_problem
from atrex.gates.outputs import judge_outputs
from atrex.inputs import build_inputs, negations, touches, window_spec
from atrex.judge import CandidateFault, Session
from atrex.problem import Problem
from atrex.protocol import Edit, InputSpec, Keep, Round
from atrex.records import FaultKind, Shape

_WHOLE = 1 << 24  # elements that are all looked at; of more, some rows
_ROWS = 64
_PAIRS = 5


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

    def familiar(self) -> float:
        """How long a pass takes over inputs that were seen before, as a share of one over changed ones.

        The median of some pairs, each pass the first of a round, after a change of an element in every input;
        for the familiar ones it is the same change again, which changes nothing. Leaves the inputs changed.
        """
        if self.problem.contract.updates:
            return 1.0  # every call changes them
        shares = list[float]()
        for _ in range(_PAIRS):
            edits = touches(self.problem, self.spec.shape, self.dice)
            first = self._round(passes=self.passes, edits=edits)
            again = self._round(passes=1, edits=edits)
            shares.append(again / first if first > 0 else 1.0)
        return statistics.median(shares)

    def _round(self, **wanted: Any) -> float:
        """Microseconds a call that the first pass of a round claims."""
        return next(iter(self.session.round(Round(**wanted)).samples_us), 0.0)

    def _rows(self) -> tuple[int, int]:
        """The rows that are looked at: first, and how many."""
        rows = self.spec.dims[self.problem.rows] if self.problem.rows else 1
        count = _ROWS
        if self.spec.tile_rows is None:  # a GPU's judge can look at more
            if self.problem.elements(self.spec.shape) <= _WHOLE:
                return 0, rows
            count = max(count, _WHOLE // 4 // self.problem.width(self.spec.shape))
        count = min(rows, count)
        return self.dice.randrange(rows - count + 1), count

    def _changes(self, start: int, count: int) -> tuple[Edit, ...]:
        row = start + self.dice.randrange(max(1, count))
        edits = negations(self.problem, self.spec.shape, self.dice, row=row)
        return edits if self.spec.tile_rows else edits + touches(self.problem, self.spec.shape, self.dice)

    def _judge(self, edits: tuple[Edit, ...], start: int, count: int) -> None:
        """One randomly chosen set, whose inputs the call saw after these edits."""
        index = self.dice.randrange(len(self.seeds))
        outputs = self._outputs(index, start, count)
        shape, inputs = self._inputs(self.seeds[index], edits, start, count)
        try:
            found, _ = judge_outputs(self.problem, shape, inputs, outputs)
        except IllConditionedError:
            return  # the accuracy gate has said so already; a timed call cannot be judged either
        if found:
            name, mismatch = found
            raise CandidateFault(FaultKind.WRONG, f"a timed call gave {name} {mismatch.what}")

    def _outputs(self, index: int, start: int, count: int) -> dict[str, Tensor]:
        """Rows of what was left for a set; of outputs without rows all."""
        problem, some = self.problem, self._some_rows(count)
        wanted = Keep(index=index, sliced=problem.row_outputs(), start=start, stop=start + count)
        nbytes = sum(problem.nbytes(out, some) + 64 for out in problem.spec.outputs.values())
        outcome = self.session.keep(wanted, nbytes)
        wrong = form_problem(problem, self.spec, outcome.report)
        if wrong or set(outcome.outputs) != set(problem.spec.outputs):
            raise CandidateFault(FaultKind.WRONG, f"a timed call left {wrong or 'what is no tensor'}")
        return outcome.outputs

    def _inputs(
        self, seed: int, edits: tuple[Edit, ...], start: int, count: int
    ) -> tuple[Shape, dict[str, Tensor]]:
        """The same rows of the inputs, drawn here, and the shape that they have."""
        problem, device = self.problem, self.session.engine.torch_device
        ours = self.spec.model_copy(update={"seed": seed})
        if self.spec.tile_rows is not None:
            ours, edits = window_spec(problem, ours, start, count), self._seen_from(start, edits)
            ours = ours.model_copy(update={"edits": (*ours.edits, *edits)})
            return ours.shape, build_inputs(problem, ours, device)[0]
        ours = ours.model_copy(update={"edits": (*ours.edits, *edits)})
        inputs, _ = build_inputs(problem, ours, device)
        rows = {name: inputs[name][start : start + count].clone() for name in problem.row_inputs()}
        return self._some_rows(count), inputs | rows

    def _some_rows(self, count: int) -> Shape:
        problem, shape = self.problem, self.spec.shape
        return problem.resize(shape, **{problem.rows: count}) if problem.rows else shape

    def _seen_from(self, start: int, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """The edits, their rows counted from the window's first."""
        rows = self.problem.row_inputs()
        return tuple(e.model_copy(update={"at": (e.at[0] - start,)}) if e.input in rows else e for e in edits)

"""What timed calls left behind, against the judge's own: a fast call must also be a right one.

Something in every set is changed in place before: a kernel that began to remember results while it was
timed gives the old ones. Passes are then timed by a request like every other. Something else is changed
after: who computes only when outputs are fetched gives the new ones. All of it happens twice. Once a row is
negated, and the outputs are overwritten before, so that a call must write them. Once they are not, so that
nothing tells a call that it will be looked at, and one element is changed, which who looks at a part of each
row before it trusts its memory does not see.

A memory that looks at all of its inputs is always right, and fast where the same inputs are timed again and
again. It is seen by changing one element: what was seen before may not take much less time than what was not.

Only the last pass of a round leaves something to look at. So before each round a pass is asked for by itself,
after a change of an element. Some of these are looked at, so none can be left out; they may not take much
longer than what is claimed of a pass in a round.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from atrex.gates.comparators import IllConditionedError
from atrex.gates.form import form_problem
from atrex.gates.outputs import judge_outputs
from atrex.inputs import build_inputs, negations, touches, window_spec
from atrex.judge import CandidateFault, Session
from atrex.problem import Problem
from atrex.protocol import Edit, InputSpec, Keep, Round
from atrex.records import FaultKind, Shape

_WHOLE = 1 << 24  # elements that are all looked at; of more, some rows
_ROWS = 64
_PAIRS = 5
_MOST_REQUEST_US = 1000.0  # what a request may cost the judge's clock by itself


@dataclass(slots=True)
class Kept:
    """The check of one contestant's timed outputs; `spec` and `seeds` are what its sets were made of."""

    session: Session
    problem: Problem
    spec: InputSpec
    seeds: tuple[int, ...]
    passes: int = 1  # of a timed round
    dice: random.Random = field(default_factory=random.SystemRandom)
    done: tuple[Edit, ...] = ()  # to every set, until now

    def check(self) -> None:
        """Look at two rounds. Raises CandidateFault, of kind WRONG, for an output that is not right."""
        window = self._rows()
        updated = self.problem.contract.updates
        for changes, spoil in ((negations, True), (touches, False)):
            self._change(self._drawn(changes, window), spoil=spoil)
            self._round(passes=1 if updated else self.passes)  # more would update a state more than once
            after = tuple(e for e in self._drawn(changes, window) if e.input not in updated)
            self._round(passes=0, edits=after)
            self._judge(self.done, *window)
            self.done += after

    def lone(self, *, look: bool) -> float:
        """Microseconds on the judge's clock of a pass that is a round by itself.

        What a request without a pass has cost is taken off. Raises CandidateFault as `check` does.
        """
        window = self._rows()
        self._change(self._drawn(touches, window))
        request = self._seen(0)
        seen = self._seen(1)
        if look:
            self._judge(self.done, *window)
        return seen - min(_MOST_REQUEST_US, request)

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
            self.done += edits
            shares.append(again / first if first > 0 else 1.0)
        return statistics.median(shares)

    def _change(self, edits: tuple[Edit, ...], *, spoil: bool = False) -> None:
        """Change every set, from the state that it had in the beginning."""
        self._round(passes=0, restore=True, spoil=spoil, edits=edits)
        updated = self.problem.contract.updates
        self.done = (*(edit for edit in self.done if edit.input not in updated), *edits)

    def _seen(self, passes: int) -> float:
        """Microseconds of a round on the judge's clock."""
        started = time.perf_counter()
        self._round(passes=passes)
        return (time.perf_counter() - started) * 1e6

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

    def _drawn(self, changes: Callable[..., tuple[Edit, ...]], window: tuple[int, int]) -> tuple[Edit, ...]:
        """`negations` or `touches` in one of the rows that are looked at."""
        start, count = window
        row = start + self.dice.randrange(max(1, count))
        return changes(self.problem, self.spec.shape, self.dice, row=row)

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
            ours, edits = window_spec(problem, ours, start, count), self._inside(start, count, edits)
            ours = ours.model_copy(update={"edits": (*ours.edits, *edits)})
            return ours.shape, build_inputs(problem, ours, device)[0]
        ours = ours.model_copy(update={"edits": (*ours.edits, *edits)})
        inputs, _ = build_inputs(problem, ours, device)
        rows = {name: inputs[name][start : start + count].clone() for name in problem.row_inputs()}
        return self._some_rows(count), inputs | rows

    def _some_rows(self, count: int) -> Shape:
        problem, shape = self.problem, self.spec.shape
        return problem.resize(shape, **{problem.rows: count}) if problem.rows else shape

    def _inside(self, start: int, count: int, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """The edits that a window shows, their rows counted from its first."""
        moved = list[Edit]()
        for edit in edits:
            if edit.input not in self.problem.row_inputs():
                moved.append(edit)
                continue
            extents = self.problem.tensor_shape(self.problem.spec.inputs[edit.input], self.spec.shape)
            unit = math.prod(extents[1:]) if edit.kind == "place" else 1
            at = edit.at[0] - start * unit
            if 0 <= at < count * unit:
                moved.append(edit.model_copy(update={"at": (at,)}))
        return tuple(moved)

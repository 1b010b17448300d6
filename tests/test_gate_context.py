"""What a gate's view of a candidate demands, and whose fault a lack of memory is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atrex import gpu_memory
from atrex.candidate import load_candidate
from atrex.gates import shapes
from atrex.gates.context import GateContext, Rejection, make_plan
from atrex.gates.purity import _same_elsewhere
from atrex.judge import Engine
from atrex.protocol import Edit, InputSpec, SpecialName
from atrex.records import Shape, Status, Verdict
from atrex.verify import Verifier, gate_context
from traces.workload import load_workload

ROOT = Path(__file__).parents[1]
STATES = "chunk_gated_delta_rule_state"


@pytest.fixture
def states(engine: Engine) -> Iterator[GateContext]:
    """What `specials` sees of a kernel for a recurrence whose outputs are `checked`."""
    kernel = load_candidate(ROOT / f"tests/honest/{STATES}/triton/chunk_loop.py", STATES)
    cases = load_workload(operators=[STATES]).cases(STATES)
    with engine.session(kernel) as session:
        yield gate_context("specials", session, cases, "screen", 1, "", lambda: session)


class TestClassesOfCheckedOutputs:
    """Another order of a sum may give zero where the oracle has 1e-8, and `check` knows whether it may."""

    @pytest.mark.parametrize("value", [0.0, -0.0, 7.0])
    def test_a_number_may_be_any_number(self, states: GateContext, value: float) -> None:
        spec, right = self._right(states)
        right["h"][0, 1, 0, 0, 0] = value
        states.require_classes(spec, right, "here")

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_a_number_must_be_one(self, states: GateContext, value: float) -> None:
        spec, wrong = self._right(states)
        wrong["h"][0, 1, 0, 0, 0] = value
        with pytest.raises(Rejection, match="here: h special value lost or made"):
            states.require_classes(spec, wrong, "here")

    @pytest.mark.parametrize("value", [0.0, 7.0])
    def test_a_zero_stays_the_zero_that_it_is(self, states: GateContext, value: float) -> None:
        shape = self._shape(states)
        count, size = shape.dims["state_count"], shape.dims["key_dim"] * shape.dims["value_dim"]
        size *= shape.dims["num_v_heads"]
        firsts = tuple(range(0, count * size, size))
        zeros: tuple[SpecialName, ...] = ("-0",) * count
        edit = Edit(kind="place", input="initial_state", at=firsts, values=zeros)
        spec, outputs = self._right(states, edit)
        assert str(float(outputs["h"][0, 0, 0, 0, 0])) == "-0.0"
        states.require_classes(spec, outputs, "here")
        outputs["h"][0, 0, 0, 0, 0] = value
        with pytest.raises(Rejection):
            states.require_classes(spec, outputs, "here")

    def test_what_an_infinity_becomes_follows_from_the_candidate_s_own_h(self, states: GateContext) -> None:
        """Inf times an h of the other sign, which so near zero is as right, is the other infinity."""
        shape = self._shape(states)
        token, row = 64, shape.dims["num_v_heads"] * shape.dims["key_dim"]  # the first of the second chunk
        spec, outputs = self._right(states, Edit(kind="place", input="w", at=(token * row,), values=("inf",)))
        assert outputs["v_new"][0, token, 0].isinf().all()
        turned = {**outputs, "h": outputs["h"].clone()}
        turned["h"][0, 1, 0, 0, 0] *= -1
        with pytest.raises(Rejection, match="v_new special value lost or made"):
            states.require_classes(spec, turned, "here")  # another h, and v_new still of the old one
        own = states.problem.following(shape, states.inputs(spec), turned)[0]
        assert own["v_new"][0, token, 0, 0] == -outputs["v_new"][0, token, 0, 0]
        states.require_classes(spec, {**own, "h": turned["h"]}, "here")

    @staticmethod
    def _right(states: GateContext, *edits: Edit) -> tuple[InputSpec, dict[str, Tensor]]:
        shape = TestClassesOfCheckedOutputs._shape(states)
        spec = states.spec(shape, edits=edits)
        return spec, states.problem.reference(shape, states.inputs(spec))

    @staticmethod
    def _shape(states: GateContext) -> Shape:
        return next(shape for shape in states.problem.odd() if shape.dims["chunks"] > 1)


def test_few_idle_places_stand_for_many(states: GateContext) -> None:
    """A pool of 474 states for one sequence costs much to deliver, and shows nothing that eight do not."""
    states.plan = make_plan("screen", "cuda")
    problem, shapes = states.problem, states.representatives()
    assert {shape.dims["state_count"] for shape in shapes} <= {3, 8}  # 3 where the whole case is reduced
    assert max(shape.dims["token_count"] for shape in shapes) > 4096
    assert all(problem.shape(case).dims["state_count"] > 8 for case in states.cases)
    whole = next(case for case in states.cases if problem.shape(case).dims["token_count"] == 2048)
    states.cases = [whole.model_copy(update={"input": {**whole.input, "batch_size": 12}})]
    assert states.representatives() == [problem.shape(states.cases[0])]  # eight are too few for twelve


class CrowdedEngine(Engine):
    """Others hold the memory of its device."""

    def crowded(self) -> str:
        return "others leave 3 MiB"


@pytest.mark.parametrize(("kind", "status"), [(Engine, Status.FAIL), (CrowdedEngine, Status.ERROR)])
def test_memory_that_others_hold_is_not_the_candidate_s_fault(kind: type[Engine], status: Status) -> None:
    with kind("cpu", memory_bytes=2 << 30) as made:
        verdict = _interface(made)
    assert verdict.status is status
    assert ("harness: others leave 3 MiB; out of memory" in verdict.reason) == (status is Status.ERROR)


LIMITED = """        if x.numel() > {most}:
            raise MemoryError("no room for so many")
        if x.stride(-1) != 1:"""


@pytest.mark.parametrize(("most", "judged"), [(9 << 20, 1), (5 << 20, 2), (3 << 20, 4), (1 << 20, None)])
def test_a_kernel_without_room_for_so_many_rows_is_asked_for_fewer(
    engine: Engine, most: int, judged: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "_HUGE", 8 << 20)
    source = (ROOT / "tests/honest/rms_norm/cpp/scalar.py").read_text()
    kernel = tmp_path / "limited.py"
    kernel.write_text(source.replace("        if x.stride(-1) != 1:", LIMITED.format(most=most)))
    candidate, cases = load_candidate(kernel, "rms_norm"), load_workload().cases("rms_norm")
    with engine.session(candidate) as session:
        ctx = gate_context("shapes", session, cases, "full", 1, "", lambda: session)
        if judged is None:
            with pytest.raises(Rejection, match="out of memory: MemoryError: no room for so many"):
                shapes._huge(ctx)
            return
        shapes._huge(ctx)
    said = str(ctx.metrics["huge"])
    assert int(said.split()[0]) >= (8 << 20) // judged
    assert ("out of memory at" in said) == (judged > 1)


@pytest.mark.parametrize("remembered", [False, True])
def test_another_process_may_round_otherwise(engine: Engine, remembered: bool) -> None:
    """As where an autotuner chose another block by timing. What is remembered is wrong, and not rounded."""
    kernel = load_candidate(ROOT / "tests/honest/rms_norm/cpp/scalar.py", "rms_norm")
    with engine.session(kernel) as session:
        cases = load_workload().cases("rms_norm")
        ctx = gate_context("purity", session, cases, "full", 1, "", lambda: session)
        spec = ctx.spec(ctx.smallest())
        got = ctx.call(spec).outputs
        elsewhere = {"out": got["out"].clone()}
        elsewhere["out"].view(torch.int16)[0, 0] += 1  # the next bf16
        if not remembered:
            _same_elsewhere(ctx, spec, got, elsewhere, "here")
            return
        got["out"][0, 1] *= 1.5
        with pytest.raises(Rejection, match="here: out error"):
            _same_elsewhere(ctx, spec, got, elsewhere, "here")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("held", [0.0, 0.5])
def test_a_crowded_gpu(held: float, tmp_path: Path) -> None:
    """A kernel that takes all memory fails where it can have its share, and is not judged where it cannot."""
    total = torch.cuda.mem_get_info()[1]
    kept = torch.empty(int(held * total), dtype=torch.uint8, device="cuda")
    greedy = tmp_path / "greedy.py"
    source = (ROOT / "tests/faults/allocates.py").read_text()
    greedy.write_text(source.replace("torch.empty(1 << 26)", "torch.ones(1 << 28, device='cuda')"))
    with Engine("cuda") as engine:
        verdict = _interface(engine, greedy)
    assert verdict.status is (Status.ERROR if held else Status.FAIL), verdict
    assert ("others leave" in verdict.reason) == bool(held)
    del kept
    gpu_memory.give_back()


def _interface(engine: Engine, kernel: Path = ROOT / "tests/faults/allocates.py") -> Verdict:
    cases = [case for case in load_workload().cases("rms_norm") if case.id == "rms_norm-015"]
    with Verifier(engine, beside=False) as verifier:
        candidate = load_candidate(kernel, "rms_norm")
        return verifier.judge(candidate, cases, level="screen", gates=["interface"]).verdicts[-1]

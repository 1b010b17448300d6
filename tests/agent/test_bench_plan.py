"""Which cases run and who runs them: spreads, weights, phases, spellings, and errors that name the remedy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agent.bench_agents import Agent, parse_agent
from agent.bench_lab import Care, bench_rules, held_in_sample
from agent.bench_plan import Selection, make_plan, parse_ops, spread
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.problem import operators
from atrex.records import Case
from traces.workload import load_workload

WORKLOAD = """\
name: mine
provenance: a test
operators:
  rms_norm:
    weight: 0.1
    phases: [prefill, decode]
    cases:
      - {shape: 0, input: {token_count: 8, hidden_size: 8}, production_us: {H200: 4.0}}
      - {shape: 1, input: {token_count: 900, hidden_size: 8}}
  fft:
    weight: 0.4
    phases: [prefill]
    cases:
      - {shape: 0, input: {m: 8}}
"""


def cases(count: int) -> list[Case]:
    return [Case(operator="o", id=f"o-{n}", input={}, phase="decode", weight=0.1) for n in range(count)]


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(WORKLOAD)
    return str(path)


class TestSpread:
    @pytest.mark.parametrize(
        ("count", "most", "expected"),
        [
            (5, None, [0, 1, 2, 3, 4]),
            (5, 5, [0, 1, 2, 3, 4]),
            (5, 9, [0, 1, 2, 3, 4]),
            (9, 3, [0, 4, 8]),
            (9, 2, [0, 8]),
            (9, 1, [4]),
            (1, 1, [0]),
            (0, 3, []),
        ],
    )
    def test_places(self, count: int, most: int | None, expected: list[int]) -> None:
        assert [int(case.id[2:]) for case in spread(cases(count), most)] == expected

    def test_every_number_of_cases_is_distinct_and_keeps_the_weight(self) -> None:
        for count in range(1, 40):
            for most in range(1, count + 1):
                chosen = spread(cases(count), most)
                assert len({case.id for case in chosen}) == most
                assert math.fsum(case.weight for case in chosen) == pytest.approx(0.1 * count)


class TestPlan:
    def test_the_whole_workload(self) -> None:
        names = set(load_workload().operators)
        plans = make_plan(Selection())
        assert {plan.operator for plan in plans} == names
        assert [plan.weight for plan in plans] == sorted((plan.weight for plan in plans), reverse=True)
        assert sum(len(plan.cases) for plan in plans) == 440
        assert sum(plan.weight for plan in plans) == pytest.approx(1.09478, abs=1e-5)
        assert {plan.operator for plan in plans if plan.problem} == names & set(operators())

    def test_a_phase(self) -> None:
        (plan,) = make_plan(Selection(ops=("rms_norm",), phase="decode"))
        assert {case.phase for case in plan.cases} == {"decode"}
        with pytest.raises(UsageError, match="--phase prefill: no case"):
            make_plan(Selection(ops=("topk_filter",), phase="prefill"))

    def test_small_shapes_keep_id_and_weight(self) -> None:
        full, small = (
            make_plan(Selection(ops=("rms_norm",), cases=3, scale=s))[0] for s in ("full", "small")
        )
        assert [case.id for case in full.cases] == [case.id for case in small.cases]
        assert full.weight == pytest.approx(small.weight)
        assert max(case.input["token_count"] for case in small.cases) <= 37

    def test_an_operator_that_bench_does_not_have_stays_in(self, mine: str) -> None:
        plans = make_plan(Selection(mine))
        assert [(plan.operator, plan.problem) for plan in plans] == [("fft", False), ("rms_norm", True)]

    def test_ops_in_any_spelling(self) -> None:
        assert parse_ops("rmsnorm, SiLU-and-mul,rms_norm") == ("rms_norm", "silu_and_mul")
        assert parse_ops(None) == ()
        with pytest.raises(UsageError, match="unknown operator 'rms_nrom'; did you mean rms_norm"):
            parse_ops("silu_and_mul,rms_nrom")
        with pytest.raises(UsageError, match="--ops: name at least one"):
            parse_ops(" , ")

    def test_an_operator_outside_the_workload(self, mine: str) -> None:
        with pytest.raises(UsageError, match="workload mine has no operator 'layer_norm'"):
            make_plan(Selection(mine, ops=("layer_norm",)))


class TestAgents:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("eagre", "unknown agent 'eagre'; did you mean eager"),
            ("cluade", "unknown agent 'cluade'; did you mean claude"),
            (
                "somebody",
                "unknown agent 'somebody'; known: eager, compile, library, replay:DIR, search, claude",
            ),
            ("eager:here", "known: eager, compile, library, replay:DIR"),
            ("replay", "replay needs a directory"),
            ("replay:", "replay needs a directory"),
            ("replay:/nowhere", "replay:/nowhere: there is no such directory"),
        ],
    )
    def test_what_is_wrong_is_said(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            parse_agent(text)

    def test_a_directory_of_kernels(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no file is named after an operator"):
            parse_agent(f"replay:{tmp_path}")
        (tmp_path / "RMS-Norm.py").write_text("import triton\n")
        (tmp_path / "helpers.py").write_text("")
        agent = parse_agent(f"replay:{tmp_path}")
        kernel = agent.kernel("rms_norm")
        assert isinstance(kernel, Candidate)
        assert kernel.dsl == "triton"
        assert agent.kernel("topk_filter") == f"no topk_filter.py in {tmp_path}"
        assert (agent.strangers, agent.judged, agent.hold) == (("helpers.py",), True, "always")
        (tmp_path / "rmsnorm.py").write_text("")
        with pytest.raises(UsageError, match="both for rms_norm"):
            parse_agent(f"replay:{tmp_path}")

    def test_the_library_has_few_kernels(self) -> None:
        agent = Agent("library")
        assert isinstance(agent.kernel("rms_norm"), Candidate)
        assert agent.kernel("moe_align_block_size") == "no library kernel"

    def test_a_baseline_is_identified_by_what_it_calls(self) -> None:
        eager, compiled = (Agent(kind).kernel("rms_norm") for kind in ("eager", "compile"))
        assert isinstance(eager, Candidate)
        assert isinstance(compiled, Candidate)
        assert "# bench/ sha256 " in eager.source
        assert eager.id != compiled.id


class TestRules:
    def test_a_baseline_of_ours_needs_fewer_sets_and_rounds(self) -> None:
        ours = bench_rules("cuda", 1, Care(), memory=100 << 30)
        theirs = bench_rules("cuda", 2, Care(held=True, stranger=True), memory=100 << 30)
        assert (ours.hold, ours.min_sets, ours.min_rounds) == (False, 1, 3)
        assert (theirs.hold, theirs.min_sets, theirs.min_rounds) == (True, None, 6)
        assert (ours.most_bytes, theirs.most_bytes) == (20 << 30, 10 << 30)
        assert bench_rules("cpu", 1, Care(lean=True), memory=1 << 30).most_bytes == 1

    def test_a_sample_holds_small_cases_only(self) -> None:
        (plan,) = make_plan(Selection(ops=("rms_norm",)))
        sample = held_in_sample(plan.cases)
        assert 1 <= len(sample) <= len(plan.cases) // 8 + 1
        huge = plan.cases[0].model_copy(update={"input": {"token_count": 1 << 20, "hidden_size": 8192}})
        assert not held_in_sample([huge])

"""The loop of a benchmark on a synthetic instrument: resume, budgets, faults, and what is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from agent.bench_agents import Agent, parse_agent
from agent.bench_book import Book
from agent.bench_lab import Care, Job, NotTimed
from agent.bench_loop import NOT_REACHED, Findings, Loop
from agent.bench_plan import OperatorPlan
from atrex.candidate import Candidate
from atrex.gates.context import Level
from atrex.ledger import Ledger
from atrex.measure import Timing
from atrex.records import Bound, Case, FaultKind, Judgement, Latency, Status, Verdict
from atrex.report.workload import WorkloadReport
from atrex.score import score_cases

SIZES = {"rms_norm": {"token_count": 8, "hidden_size": 16}, "silu_and_mul": {"shape": [4, 16]}}
WEIGHTS = {"rms_norm": 0.3, "silu_and_mul": 0.1}


def case(operator: str, number: int) -> Case:
    return Case(
        operator=operator,
        id=f"{operator}-{number:03d}",
        input=SIZES[operator],
        phase="prefill",
        weight=WEIGHTS[operator] / 3,
    )


PLANS = tuple(OperatorPlan(name, tuple(case(name, n) for n in range(3))) for name in SIZES)


@dataclass
class SyntheticLab:
    """Every call takes 10 µs where the bound is 5; `fault` says why a case cannot be timed."""

    fault: Callable[[Candidate, Case, Care], NotTimed | None] = lambda _candidate, _case, _care: None
    verdict: Status = Status.PASS
    killed_after: int | None = None
    timed: list[tuple[int, str, Care]] = field(default_factory=list)  # contestants, case, care
    judged: list[str] = field(default_factory=list)
    warmed: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    now: float = 0.0  # a clock that every timing moves on by a second

    def bound(self, case: Case) -> Bound:
        return Bound(sol_us=5.0, attainable_us=8.0, limiter="memory")

    def judge(self, candidate: Candidate, cases: Sequence[Case], level: Level, seed: int) -> Judgement:
        self.judged.append(candidate.operator)
        reason = "" if self.verdict is Status.PASS else "not what it should be"
        verdict = Verdict(gate="accuracy", status=self.verdict, tolerance_free=False, reason=reason)
        return Judgement(
            candidate=candidate.id,
            operator=candidate.operator,
            device="cpu",
            level=level,
            seed=seed,
            required=("accuracy",),
            verdicts=(verdict,),
        )

    def time(self, candidates: Sequence[Candidate], case: Case, care: Care) -> list[Timing]:
        if self.killed_after is not None and len(self.timed) >= self.killed_after:
            raise KeyboardInterrupt
        self.now += 1.0
        self.timed.append((len(candidates), case.id, care))
        for candidate in candidates:
            if fault := self.fault(candidate, case, care):
                raise fault
        times = [10.0 * (place + 1) for place in range(len(candidates))]
        return [Timing(Latency(median_us=t, p10_us=t, p90_us=t, n=9, method="wall"), (t,) * 6) for t in times]

    def warm(self, jobs: Sequence[Job], stop: Callable[[], bool]) -> None:
        assert not stop()
        self.warmed += [candidate.operator for candidate, _ in jobs]

    def release(self, operator: str) -> None:
        self.released.append(operator)


def _wrong_on(name: str, candidate: Candidate, case: Case, care: Care) -> NotTimed | None:
    fault = NotTimed("wrong output", kind=FaultKind.WRONG, candidate=candidate.id)
    return fault if case.id == name else None


def run(folder: Path, lab: SyntheticLab, agent: Agent | None = None, **options: object) -> Findings:
    with Ledger(folder / "ledger.jsonl", "here") as ledger:
        book = Book(ledger, "p1-bench")
        book.load()
        loop = Loop(lab, agent or Agent("eager"), book, 1, clock=lambda: lab.now, **options)  # type: ignore[arg-type]
        return loop.run(PLANS)


def report(found: Findings) -> WorkloadReport:
    cases = [case for plan in PLANS for case in plan.cases]
    return WorkloadReport(
        agent="x",
        device="cpu",
        workload="w",
        run="r",
        seconds=1,
        cases=score_cases(cases, found.results),
        entrants=tuple(found.entrants),
        reasons=found.reasons,
    )


@pytest.fixture
def replay(tmp_path: Path) -> Agent:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "rmsnorm.py").write_text("class Model: ...\n")
    return parse_agent(f"replay:{folder}")


class TestLoop:
    def test_every_case_is_measured_once_and_each_operator_ends_with_its_workers(
        self, tmp_path: Path
    ) -> None:
        lab = SyntheticLab()
        found = run(tmp_path, lab)
        assert [name for _, name, _ in lab.timed] == [case.id for plan in PLANS for case in plan.cases]
        assert lab.released == list(SIZES)
        assert {one.outcome for one in found.entrants} == {"baseline"}
        assert pytest.approx(0.5) == report(found).S
        assert not lab.judged

    def test_a_kill_after_any_case_costs_nothing_that_was_recorded(self, tmp_path: Path) -> None:
        for number in range(6):
            folder = tmp_path / str(number)
            with pytest.raises(KeyboardInterrupt):
                run(folder, SyntheticLab(killed_after=number))
            again = SyntheticLab()
            assert len(run(folder, again).results) == 6
            assert len(again.timed) == 6 - number

    def test_a_ledger_cut_anywhere_is_taken_up(self, tmp_path: Path) -> None:
        """SIGKILL or a full disk may end the file within any line."""
        broken = lambda _c, case, _care: NotTimed("launch: boom") if case.id.endswith("001") else None  # noqa: E731
        run(tmp_path, SyntheticLab(fault=broken))
        whole = (tmp_path / "ledger.jsonl").read_bytes()
        for cut in range(0, len(whole), 97):
            folder = tmp_path / f"cut-{cut}"
            folder.mkdir()
            (folder / "ledger.jsonl").write_bytes(whole[:cut])
            kept = whole[:cut].split(b"\n")[:-1]
            known = sum(b'"kind":"result"' in line for line in kept)
            lab = SyntheticLab(fault=broken)
            found = run(folder, lab)
            assert len({name for _, name, _ in lab.timed}) == 6 - known
            assert len(found.results) == 6
            assert found.reasons == {f"{name}-001": "launch: boom" for name in SIZES}

    def test_a_kernel_that_turns_out_to_be_wrong_loses_what_was_measured_before(
        self, tmp_path: Path, replay: Agent
    ) -> None:
        """On the second or third case as on the first; the report is whole, now and when it is resumed."""
        for number in range(3):
            wrong = partial(_wrong_on, f"rms_norm-00{number}")
            folder = tmp_path / str(number)
            for _session in range(2):
                found = run(folder, SyntheticLab(fault=wrong), replay)
                rows = [result for result in found.results if result.operator == "rms_norm"]
                assert len(rows) == 3
                assert not any(result.accepted or result.latency for result in rows)
                assert next(one for one in found.entrants if one.operator == "rms_norm").outcome == "rejected"
                assert set(found.reasons) >= {f"rms_norm-00{n}" for n in range(3)}
                assert report(found).S == 0

    def test_results_of_another_machine_policy_or_kernel_are_not_ours(self, tmp_path: Path) -> None:
        run(tmp_path, SyntheticLab())
        for hardware, policy in [("elsewhere", "p1-bench"), ("here", "p2-bench")]:
            with Ledger(tmp_path / "ledger.jsonl", hardware) as ledger:
                assert Book(ledger, policy).load() == 0

    def test_a_budget_leaves_the_rest_at_zero_and_a_resume_measures_it(self, tmp_path: Path) -> None:
        first = run(tmp_path, SyntheticLab(), deadline=2.0)
        seen = report(first)
        assert (len(first.results), seen.measured) == (2, pytest.approx(0.2 / 0.4))
        assert pytest.approx((0.3 * (2 * 0.5 / 3)) / 0.4) == seen.S
        assert set(first.reasons.values()) == {NOT_REACHED}
        assert len(first.reasons) == 4
        lab = SyntheticLab()
        assert pytest.approx(0.5) == report(run(tmp_path, lab)).S
        assert len(lab.timed) == 4

    def test_a_fault_leaves_one_case_unmeasured_and_goes_on(self, tmp_path: Path) -> None:
        full = NotTimed("out of memory: 80 GiB", kind=FaultKind.OUT_OF_MEMORY)
        lab = SyntheticLab(fault=lambda _c, case, _care: full if case.id == "rms_norm-001" else None)
        found = run(tmp_path, lab)
        assert found.reasons == {"rms_norm-001": "out of memory: 80 GiB"}
        assert [care.lean for _, name, care in lab.timed if name == "rms_norm-001"] == [False, True]
        seen = report(found)
        assert pytest.approx(0.5 * (0.3 * 2 / 3 + 0.1) / 0.4) == seen.S
        assert seen.harmonic == 0.0
        lab = SyntheticLab()
        run(tmp_path, lab)
        assert not lab.timed, "a recorded failure is a result, too"

    def test_a_case_that_fits_with_one_set_of_inputs_is_measured_so(self, tmp_path: Path) -> None:
        full = NotTimed("oom", kind=FaultKind.OUT_OF_MEMORY)
        lab = SyntheticLab(fault=lambda _c, _case, care: None if care.lean else full)
        assert report(run(tmp_path, lab)).measured == pytest.approx(1)

    def test_an_operator_that_takes_too_long_is_given_up(self, tmp_path: Path) -> None:
        slow = NotTimed("timeout: no answer within 90 s", kind=FaultKind.TIMEOUT)
        lab = SyntheticLab(fault=lambda _c, case, _care: slow if case.operator == "rms_norm" else None)
        found = run(tmp_path, lab)
        assert [name for _, name, _ in lab.timed][:3] == ["rms_norm-000", "rms_norm-001", "silu_and_mul-000"]
        assert found.reasons["rms_norm-001"] == "timeout: no answer within 90 s"
        assert found.reasons["rms_norm-002"].startswith("not tried: 2 cases")
        assert report(found).measured == pytest.approx(0.25)

    def test_an_operator_that_is_wrong_where_it_was_looked_at_is_believed_nowhere(
        self, tmp_path: Path
    ) -> None:
        """A compiler is looked at on a sample, which is measured first."""
        wrong = NotTimed("wrong output: out error 1", kind=FaultKind.WRONG)
        fault = lambda _c, case, care: wrong if care.held and case.operator == "rms_norm" else None  # noqa: E731
        lab = SyntheticLab(fault=fault)
        found = run(tmp_path, lab, Agent("compile"))
        assert [name for _, name, _ in lab.timed] == ["rms_norm-000"] + [c.id for c in PLANS[1].cases]
        assert (
            found.reasons["rms_norm-001"]
            == found.reasons["rms_norm-002"]
            == "not believed: wrong on rms_norm-000"
        )
        seen = report(found)
        assert [(row.op, row.outcome, row.S) for row in seen.operators] == [
            ("rms_norm", "rejected", 0.0),
            ("silu_and_mul", "baseline", 0.5),
        ]
        assert seen.coverage == pytest.approx(0.25)
        again = SyntheticLab()
        assert run(tmp_path, again, Agent("compile")).reasons == found.reasons
        assert not again.timed

    def test_eager_that_fails_beside_a_kernel_is_left_out(self, tmp_path: Path) -> None:
        def fault(candidate: Candidate, _case: Case, _care: Care) -> NotTimed | None:
            eager = candidate.note == "baseline eager"
            return NotTimed("timeout", candidate.id) if eager else None

        found = run(tmp_path, SyntheticLab(fault=fault), Agent("compile"), beside_eager=True)
        assert all(result.latency and result.vs_eager is None for result in found.results)

    def test_beside_eager_there_is_a_ratio(self, tmp_path: Path) -> None:
        found = run(tmp_path, SyntheticLab(), Agent("compile"), beside_eager=True)
        rows = report(found).operators
        assert [row.vs_eager.median for row in rows if row.vs_eager] == [pytest.approx(2.0)] * 2

    def test_a_compiler_works_ahead_only_for_what_is_open(self, tmp_path: Path) -> None:
        lab = SyntheticLab()
        run(tmp_path, lab, Agent("compile"))
        assert lab.warmed == list(SIZES)
        assert {name for _, name, care in lab.timed if care.held} == {f"{name}-000" for name in SIZES}
        again = SyntheticLab()
        run(tmp_path, again, Agent("compile"))
        assert not again.warmed

    def test_an_operator_without_a_problem_counts_zero_and_says_so(self, tmp_path: Path) -> None:
        stranger = Case(operator="fft", id="fft-000", input={}, phase="prefill", weight=0.5)
        with Ledger(tmp_path / "ledger.jsonl", "here") as ledger:
            loop = Loop(SyntheticLab(), Agent("eager"), Book(ledger, "p"), 1)
            found = loop.run([OperatorPlan("fft", (stranger,), problem=False)])
        assert found.reasons == {"fft-000": "no problem of that name under bench/"}
        assert found.entrants[0].outcome == "absent"


class TestReplay:
    def test_an_accepted_kernel_is_measured_under_every_guard(self, tmp_path: Path, replay: Agent) -> None:
        lab = SyntheticLab()
        seen = report(run(tmp_path, lab, replay))
        assert [(row.op, row.outcome, row.measured) for row in seen.operators] == [
            ("rms_norm", "accepted", 3),
            ("silu_and_mul", "absent", 0),
        ]
        assert all(care.held and care.stranger for _, _, care in lab.timed)
        assert seen.coverage == pytest.approx(0.75)
        run(tmp_path, again := SyntheticLab(), replay)
        assert (again.judged, again.timed) == ([], [])

    def test_a_rejected_kernel_is_zero_with_its_gate(self, tmp_path: Path, replay: Agent) -> None:
        lab = SyntheticLab(verdict=Status.FAIL)
        seen = report(run(tmp_path, lab, replay))
        assert (seen.S, seen.coverage, lab.timed) == (0.0, 0.0, [])
        assert seen.operators[0].outcome == "rejected"
        assert seen.operators[0].note == "accuracy FAIL: not what it should be"
        assert {one.standing for one in seen.cases[:3]} == {"rejected"}

    def test_a_fault_of_the_harness_is_no_verdict(self, tmp_path: Path, replay: Agent) -> None:
        seen = report(run(tmp_path, SyntheticLab(verdict=Status.ERROR), replay))
        assert seen.operators[0].outcome == "undecided"
        assert {one.standing for one in seen.cases} == {"missing"}
        seen = report(run(tmp_path, SyntheticLab(), replay))
        assert seen.operators[0].outcome == "accepted", "judged again"

    def test_another_level_is_another_judgement(self, tmp_path: Path, replay: Agent) -> None:
        run(tmp_path, SyntheticLab(), replay, level="screen")
        run(tmp_path, lab := SyntheticLab(), replay, level="full")
        assert lab.judged == ["rms_norm"]

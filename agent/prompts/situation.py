"""The part of a prompt that changes with every step: the file, where its time goes, what is known of it."""

from __future__ import annotations

from collections.abc import Iterator

from agent.context import BucketDiagnosis, Context, Repair, attainable
from agent.events import ALL_CASES
from agent.prompts.room import Section, fit
from agent.state import Attempt, Lesson
from atrex.records import Bound, Ratio, Verdict

_CASES = 4  # of a bucket that are listed, those with the most time to recover
_SOURCE_TOKENS = 4000  # of a reference kernel that is shown beside the file to improve


def situation(context: Context, budget: int) -> str:
    """All that dropout leaves in sight, in at most about `budget` tokens; the file itself always."""
    text = fit(
        [
            _file(context),
            Section("Where its time goes", tuple(_buckets(context)), 1),
            Section("What the profile shows", context.profile, 2),
            Section("Faster in one bucket, and no part of it", tuple(_parents(context)), 5),
            Section("Rejected by the gates; never do this again", tuple(_lessons(context)), 3),
            Section("Tried before, the latest first", tuple(_attempts(context)), 4),
            Section("Notes", context.notes, 3),
            Section("Leave these techniques alone for now", tuple(_forbidden(context)), 3),
            Section("From the knowledge base", tuple(p.text for p in context.knowledge.passages), 5),
            Section("Reference kernels", tuple(_kernels(context)), 6),
        ],
        budget,
    )
    return text + "\n\n" + ("Mend the file." if context.repair else "Improve the file.")


def _file(context: Context) -> Section:
    if context.repair:
        return Section("The file to improve, which a gate rejected", _rejected(context.repair), 0)
    which = "the best so far" if context.base.id == context.incumbent.id else "an earlier one, to go on from"
    return Section(f"The file to improve: {which}", (_fence(context.base.source),), 0)


def _rejected(repair: Repair) -> tuple[str, ...]:
    blamed = repair.judgement.blamed
    why = _verdict(blamed) if blamed else "not all gates have spoken"
    return (f"It is wrong. {why}", _fence(repair.candidate.source))


def _verdict(verdict: Verdict) -> str:
    text = f"Gate {verdict.gate}: {verdict.reason}"
    if not (witness := verdict.witness):
        return text
    where = f" of {witness.output}{list(witness.index)}" if witness.output else ""
    seen = f": expected {witness.expected}, got {witness.got}" if witness.expected else ""
    how = f" with inputs {witness.transform}" if witness.transform else ""
    return f"{text}\nSeen on {witness.case}{how}{where}{seen}."


def _fence(source: str) -> str:
    return f"```python\n{source.rstrip()}\n```"


def _buckets(context: Context) -> Iterator[str]:
    whole = sum(each.median_us for each in context.diagnoses)
    for each in context.diagnoses:
        share = each.recoverable_us / whole if whole else 0.0
        cases = "; ".join(_case(context, each, number) for number in range(min(_CASES, len(each.cases))))
        yield (
            f"- {each.bucket.name}: {_n(each.median_us)} weighted us, attainable {_n(each.attainable_us)}, "
            f"to recover {share:.0%} of all time; {', '.join(each.symptoms)}; {cases}"
        )


def _case(context: Context, diagnosis: BucketDiagnosis, number: int) -> str:
    case = diagnosis.cases[number]
    dims = ", ".join(f"{name} {value}" for name, value in case.input.items() if isinstance(value, int))
    bound: Bound = context.bounds[case.id]
    median = context.latency_us[case.id]
    return f"{case.id} ({dims}): {_n(median)} us of {_n(attainable(bound))}, {bound.limiter}"


def _parents(context: Context) -> Iterator[str]:
    for each in context.parents:
        if each.candidate.id != context.base.id:
            yield f"- {each.bucket.name}: x{each.gain:.2f}: {each.why}\n{_fence(each.candidate.source)}"


def _lessons(context: Context) -> Iterator[str]:
    changes = {attempt.key: attempt.change for attempt in context.attempts}
    for lesson in reversed(context.lessons):
        yield f"- {_lesson(lesson, changes.get(lesson.key, ''))}"


def _lesson(lesson: Lesson, change: str) -> str:
    what = change or ", ".join(f"{name}={value}" for name, value in lesson.config.items()) or lesson.kernel
    where = "" if lesson.bucket == ALL_CASES else f" in {lesson.bucket}"
    return f"{what}{where}: {lesson.reason}"


def _attempts(context: Context) -> Iterator[str]:
    for attempt in reversed(context.attempts):
        if attempt.finding != "wrong":  # those are lessons
            yield f"- {_attempt(attempt)}"


def _attempt(attempt: Attempt) -> str:
    where = "" if attempt.bucket == ALL_CASES else f"[{attempt.bucket}] "
    realised = f"realised {_ratio(attempt.realised)}" if attempt.realised else "not measured"
    why = f" ({attempt.reason})" if attempt.reason else ""
    return (
        f"{where}{attempt.change or attempt.kernel or 'an answer'}: {attempt.finding}, "
        f"predicted x{attempt.predicted:.2f}, {realised}{why}"
    )


def _ratio(ratio: Ratio) -> str:
    return f"x{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _forbidden(context: Context) -> Iterator[str]:
    for kind, key in sorted(context.hidden):
        if kind == "technique" and key != "transfer":
            yield f"- {key}"


def _kernels(context: Context) -> Iterator[str]:
    for kernel in context.knowledge.kernels:
        if kernel.source != context.base.source and len(kernel.source) < 3 * _SOURCE_TOKENS:
            yield f"{kernel.name} ({', '.join(kernel.technique) or 'reference'}):\n{_fence(kernel.source)}"


def _n(value: float) -> str:
    """Three significant digits: more would be noise, and change the prompt for nothing."""
    return f"{value:.3g}"

"""Prefill or decode: what the annotation of a serving engine's step says, else the length of the queries.

Engines annotate each step of theirs while a profiler runs; the formats, by version:

    vLLM          execute_context_2(6144)_generation_3(3)            requests and tokens, of both phases
                  execute_6147_context_2(sq6144sk7144sqsq…sqsk…)_generation_3(sq3sk6144sqsq3sqsk6144)
                  execute_new_1_cached_3                             before: new and running requests
    SGLang        step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20], step[DECODE bs=2 …],
                  step[MIXED bs=2 c=1 g=1 …]
    TensorRT-LLM  [Executor] _forward_step 12: 1 ctx reqs, 512 ctx tokens, 3 gen reqs
    ATOM          prefill[bs=2 tok=14721 ctx=[7803, 6918]], decode[bs=64 tok=64 d=64], draft[0/3 bs=4]

sq, sk are sums of query and key lengths over the sequences, sqsq of squared query lengths. A range that is
called just `prefill` or `decode` says that. Sources: vLLM's v1/worker/gpu_worker.py, SGLang's step_span_utils
and its tests, TensorRT-LLM's pyexecutor/py_executor.py, and AMD's TraceLens for the detailed forms and ATOM.

A running request of `execute_new_0_cached_3` may still be in prefill (in chunks): that says no phase.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from traces.placed import PlacedPhase
from traces.workload import Value

ANNOTATION, LENGTHS, RULE = "step annotation", "query lengths", "rule"
MIXED_ROWS = "rows of a mixed step"

_MOST = 400  # characters of an annotation that are read
_ROWS = ("token_count", "num_tokens", "total_tokens", "tokens", "rows", "m")


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of a step in one phase; None where the annotation does not say."""

    requests: int | None = None
    queries: int | None = None  # sum of the query lengths, in tokens
    keys: int | None = None  # sum of the key lengths
    squares: int | None = None  # sum of the squared query lengths
    lengths: tuple[int, ...] | None = None  # of each sequence, where all are listed

    @property
    def none(self) -> bool:
        """No request of the step is in this phase."""
        return self.requests == 0 or (self.requests is None and self.queries == 0)

    def query_lens(self) -> tuple[int, ...]:
        """Each sequence's query length. Raises ValueError where the annotation does not fix them."""
        if self.lengths is not None:
            return self.lengths
        number, total = self.requests, self.queries
        if number and total is not None:
            even = self.squares is not None and self.squares * number == total * total
            if number == 1 or total == number or even:  # each has at least one; equal ones have least squares
                return (total // number,) * number
        raise ValueError("the lengths of the sequences are not in the trace: annotate steps in detail")

    def key_lens(self) -> tuple[int, ...]:
        """Each sequence's number of keys. Raises ValueError where the annotation does not fix them."""
        if self.keys is not None and self.requests == 1:
            return (self.keys,)
        if self.keys is not None and self.keys == self.queries:
            return self.query_lens()  # no sequence has fewer keys than queries, so all have as many
        raise ValueError("the numbers of keys are not in the trace: annotate steps in detail")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an engine, as it annotated it."""

    context: Part
    generation: Part

    @property
    def phase(self) -> PlacedPhase:
        """The phase of all its requests; unknown if both have some, or neither is known."""
        if self.context.none == self.generation.none:
            return "unknown"
        return "decode" if self.context.none else "prefill"

    @property
    def part(self) -> Part | None:
        """The requests, if all of them are in one phase."""
        return {"prefill": self.context, "decode": self.generation, "unknown": None}[self.phase]


_NONE, _SOME = Part(requests=0, queries=0), Part()
_DETAIL = r"\(sq(\d+)sk(\d+)sqsq(\d+)sqsk\d+\)"

_VLLM = re.compile(r"^execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_VLLM_DETAILED = re.compile(rf"^execute_\d+_context_(\d+){_DETAIL}_generation_(\d+){_DETAIL}")
_VLLM_NEW = re.compile(r"^execute_new_(\d+)_cached_(\d+)")
_SGLANG = re.compile(r"^step\[([A-Z0-9_]+)([^\]]*)\]")
_TRTLLM = re.compile(
    r"^\[Executor\] _forward_step ?\d*: (\d+) ctx reqs(?:, (\d+) ctx tokens)?, (\d+) gen reqs"
)
_ATOM = re.compile(r"^(prefill|eager_decode|decode|draft)\[(.*)\]$")
_PLAIN = re.compile(r"^(prefill|decode)$", re.IGNORECASE)
_PAIR = re.compile(r"\b([a-z_]+)=(\d+)")
_LENGTHS = re.compile(r"\bctx=\[([\d, ]*)\](?!\.\.\.)")

# sglang/srt/model_executor/forward_batch_info.py, ForwardMode. Verifying and drafting are steps of decoding.
_PREFILLS = ("EXTEND", "SPLIT_PREFILL", "DLLM_EXTEND")
_DECODES = ("DECODE", "TARGET_VERIFY", "DRAFT_EXTEND", "DRAFT_EXTEND_V2")


def _vllm(found: re.Match[str]) -> Step:
    context, context_tokens, generation, generation_tokens = (int(group) for group in found.groups())
    return Step(Part(context, context_tokens), Part(generation, generation_tokens))


def _vllm_detailed(found: re.Match[str]) -> Step:
    numbers = [int(group) for group in found.groups()]
    (n, q, k, squares), (m, u, v, small) = numbers[:4], numbers[4:]
    return Step(Part(n, q, k, squares), Part(m, u, v, small))


def _vllm_new(found: re.Match[str]) -> Step:
    new, cached = int(found[1]), int(found[2])
    if new and not cached:
        return Step(Part(new), _NONE)
    return Step(_SOME, _SOME)


def _sglang(found: re.Match[str]) -> Step:
    numbers = {name: int(value) for name, value in _PAIR.findall(found[2])}
    if found[1] in _PREFILLS:
        queries = numbers.get("toks", numbers.get("c_sq"))
        return Step(Part(numbers.get("bs"), queries, numbers.get("c_sk"), numbers.get("c_sqsq")), _NONE)
    if found[1] in _DECODES:
        queries = numbers.get("g_sq", numbers.get("toks"))
        if queries is None and found[1] == "DECODE":
            queries = numbers.get("bs")  # each request has one, unless the annotation says more
        return Step(_NONE, Part(numbers.get("bs"), queries, numbers.get("g_sk"), numbers.get("g_sqsq")))
    if found[1] == "IDLE":
        return Step(_NONE, _NONE)
    return Step(_side(numbers, "c"), _side(numbers, "g"))


def _side(numbers: Mapping[str, int], name: str) -> Part:
    """The requests of a mixed step in one phase: c=1 c_sq=5 c_sk=8 c_sqsq=25."""
    get = numbers.get
    return Part(get(name), get(f"{name}_sq"), get(f"{name}_sk"), get(f"{name}_sqsq"))


def _trtllm(found: re.Match[str]) -> Step:
    tokens = None if found[2] is None else int(found[2])
    return Step(Part(int(found[1]), tokens), Part(int(found[3])))


def _atom(found: re.Match[str]) -> Step:
    numbers = {name: int(value) for name, value in _PAIR.findall(found[2])}
    part = Part(numbers.get("bs"), numbers.get("tok"), numbers.get("sk"), numbers.get("sqsq"))
    if found[1] != "prefill":
        return Step(_NONE, part)
    if listed := _LENGTHS.search(found[2]):
        keys = tuple(int(length) for length in listed[1].split(",") if length.strip())
        if sum(keys) == part.queries:  # of contexts: all of them new
            part = Part(len(keys), part.queries, part.queries, part.squares, keys)
    return Step(part, _NONE)


def _plain(found: re.Match[str]) -> Step:
    prefill = found[1].lower() == "prefill"
    return Step(_SOME, _NONE) if prefill else Step(_NONE, _SOME)


_FORMATS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Step]], ...] = (
    (_VLLM, _vllm),
    (_VLLM_DETAILED, _vllm_detailed),
    (_VLLM_NEW, _vllm_new),
    (_SGLANG, _sglang),
    (_TRTLLM, _trtllm),
    (_ATOM, _atom),
    (_PLAIN, _plain),
)


def step_of(annotations: Sequence[str]) -> Step | None:
    """The innermost annotation that is a step of an engine; None if none is."""
    for annotation in reversed(annotations):
        for pattern, read in _FORMATS:
            if found := pattern.match(annotation[:_MOST]):
                return read(found)
    return None


def phase_of(
    step: Step | None, rule: PlacedPhase, operator: str, input: Mapping[str, Value]
) -> tuple[PlacedPhase, str]:
    """The phase of an entry, and what told it; ("unknown", "") if nothing did.

    A step of one phase decides. Else the rule, where its kernel serves one phase only. Else the case: queries
    of length one are decode, longer ones prefill; and in a step of both, an operator that has just the rows
    of one phase is of that phase.
    """
    if step is not None and step.phase != "unknown":
        return step.phase, ANNOTATION
    if rule != "unknown":
        return rule, RULE
    if longest := _longest_query(operator, input):
        return ("decode" if longest == 1 else "prefill"), LENGTHS
    if step is not None and (phase := _by_rows(step, input)) != "unknown":
        return phase, MIXED_ROWS
    return "unknown", ""


def _longest_query(operator: str, input: Mapping[str, Value]) -> int:
    """The longest query of a case; 0 if the operator has none, or the case is not known."""
    if operator in ("unified_attention", "attention_forward"):
        lengths = input.get("query_lens", input.get("seq_lens", []))
        runs = lengths if isinstance(lengths, list) else []
        return max((run if isinstance(run, int) else run[0] for run in runs), default=0)
    if operator in ("causal_conv1d", "gated_delta_rule_update"):
        tokens = input.get("token_count", 0)
        return tokens if isinstance(tokens, int) else 0
    return 0


def _by_rows(step: Step, input: Mapping[str, Value]) -> PlacedPhase:
    rows = next((input[name] for name in _ROWS if name in input), None)
    tokens = (step.context.queries, step.generation.queries)
    if not isinstance(rows, int) or None in tokens or tokens[0] == tokens[1] or rows not in tokens:
        return "unknown"
    return "prefill" if rows == tokens[0] else "decode"

"""Phases: engines' step annotations over their versions, and what tells where there is none."""

from __future__ import annotations

import pytest

from traces.phases import ANNOTATION, LENGTHS, MIXED_ROWS, RULE, phase_of, step_of

FORMATS = {
    # vLLM, three forms
    "execute_context_1(512)_generation_0(0)": "prefill",
    "execute_context_0(0)_generation_64(64)": "decode",
    "execute_context_2(6144)_generation_3(3)": "unknown",
    "execute_context_0(0)_generation_0(0)": "unknown",
    "execute_512_context_1(sq512sk512sqsq262144sqsk262144)_generation_0(sq0sk0sqsq0sqsk0)": "prefill",
    "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)": "decode",
    "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk1)_generation_3(sq3sk6144sqsq3sqsk6144)": "unknown",
    "execute_new_1_cached_0": "prefill",
    "execute_new_0_cached_8": "unknown",  # running requests may be in chunked prefill
    "execute_new_2_cached_8": "unknown",
    # SGLang's forward modes
    "step[EXTEND bs=1 toks=256]": "prefill",
    "step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]": "prefill",
    "step[SPLIT_PREFILL bs=1 toks=9]": "prefill",
    "step[DECODE bs=8 toks=8]": "decode",
    "step[DECODE bs=16]": "decode",
    "step[TARGET_VERIFY bs=4]": "decode",
    "step[DRAFT_EXTEND_V2 bs=4]": "decode",
    "step[IDLE bs=0]": "unknown",
    "step[MIXED bs=2]": "unknown",
    "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]": "unknown",
    "step[MIXED bs=1 c=1 g=0 c_sq=3 c_sk=3 c_sqsq=9 c_sqsk=9 g_sq=0 g_sk=0 g_sqsq=0 g_sqsk=0]": "prefill",
    # TensorRT-LLM, with and without its iteration and its tokens
    "[Executor] _forward_step 12: 1 ctx reqs, 0 gen reqs": "prefill",
    "[Executor] _forward_step: 0 ctx reqs, 4 gen reqs": "decode",
    "[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs": "decode",
    "[Executor] _forward_step 3: 2 ctx reqs, 900 ctx tokens, 32 gen reqs": "unknown",
    # ATOM
    "prefill[bs=2 tok=14721 ctx=[7803, 6918]]": "prefill",
    "decode[bs=117/128 tok=117 d=117]": "decode",
    "eager_decode[bs=4 tok=4 ctx=[9, 9, 9, 9]]": "decode",
    "draft[0/3 bs=4]": "decode",
    # plain ranges
    "prefill": "prefill",
    "Decode": "decode",
}


@pytest.mark.parametrize(("annotation", "phase"), FORMATS.items())
def test_a_step_of_an_engine_tells_its_phase(annotation: str, phase: str) -> None:
    step = step_of([annotation])
    assert step is not None
    assert step.phase == phase
    assert phase_of(step, "unknown", "rms_norm", {}) == (phase, ANNOTATION if phase != "unknown" else "")


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "forward",
        "## Call CompiledFxGraph abc ##",
        "prefill_requests",
        "my step[EXTEND bs=1]",
        "execute_x",
    ],
)
def test_other_ranges_are_no_steps(annotation: str) -> None:
    assert step_of([annotation]) is None


def test_the_innermost_step_counts() -> None:
    step = step_of(["step[DECODE bs=4]", "execute_context_1(9)_generation_0(0)", "attention"])
    assert step is not None
    assert step.phase == "prefill"


@pytest.mark.parametrize(
    ("annotation", "queries", "keys"),
    [
        # one request: its sums are its lengths
        ("execute_9_context_1(sq9sk100sqsq81sqsk900)_generation_0(sq0sk0sqsq0sqsk0)", (9,), (100,)),
        # no keys before the queries, and squares that only equal lengths have
        ("execute_8_context_2(sq8sk8sqsq32sqsk32)_generation_0(sq0sk0sqsq0sqsk0)", (4, 4), (4, 4)),
        # a list of contexts that the tokens of the step add up to
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", (7803, 6918), (7803, 6918)),
        ("step[DECODE bs=1 g_sqsq=1 g_sqsk=30 g_sk=30]", (1,), (30,)),
    ],
)
def test_lengths_that_an_annotation_fixes(
    annotation: str, queries: tuple[int, ...], keys: tuple[int, ...]
) -> None:
    step = step_of([annotation])
    assert step is not None
    assert step.part is not None
    assert step.part.query_lens() == queries
    assert step.part.key_lens() == keys


@pytest.mark.parametrize(
    ("annotation", "queries"),
    [
        ("execute_context_2(6144)_generation_0(0)", False),  # 6144 tokens of two requests
        ("execute_8_context_2(sq8sk8sqsq34sqsk34)_generation_0(sq0sk0sqsq0sqsk0)", False),  # 3 and 5
        ("step[DECODE bs=2 g_sqsq=2 g_sqsk=30 g_sk=30]", True),  # a token each, 30 keys of both
        ("execute_context_1(512)_generation_0(0)", True),  # perhaps after a cached prefix
        ("prefill[bs=6 tok=17408 ctx=[4096, 4096]...+3]", False),  # a list that is cut
        ("prefill[bs=2 tok=100 ctx=[4096, 4096]]", False),  # a chunk of longer contexts
    ],
)
def test_lengths_that_an_annotation_leaves_open_are_not_guessed(annotation: str, queries: bool) -> None:
    step = step_of([annotation])
    assert step is not None
    assert step.part is not None
    with pytest.raises(ValueError, match="are not in the trace"):
        step.part.key_lens()
    if not queries:
        with pytest.raises(ValueError, match="lengths of the sequences are not in the trace"):
            step.part.query_lens()


def test_a_rule_decides_where_no_step_does() -> None:
    assert phase_of(None, "decode", "mla_decode_attention", {}) == ("decode", RULE)
    mixed = step_of(["execute_context_2(6144)_generation_3(3)"])
    assert phase_of(mixed, "prefill", "chunk_delta_rule_output", {}) == ("prefill", RULE)
    verify = step_of(["step[TARGET_VERIFY bs=4]"])  # whose kernels are those of prefill
    assert phase_of(verify, "prefill", "unified_attention", {}) == ("decode", ANNOTATION)


def test_query_lengths_decide_then() -> None:
    attention = {"seq_lens": [[192, 8]], "num_query_heads": 8}
    assert phase_of(None, "unknown", "unified_attention", attention) == ("prefill", LENGTHS)
    ones = attention | {"query_lens": [[1, 8]]}
    assert phase_of(None, "unknown", "unified_attention", ones) == ("decode", LENGTHS)
    mixed = attention | {"query_lens": [[1, 7], [64, 1]]}
    assert phase_of(None, "unknown", "unified_attention", mixed) == ("prefill", LENGTHS)
    assert phase_of(None, "unknown", "causal_conv1d", {"token_count": 1}) == ("decode", LENGTHS)
    # rows of an operator that has no queries say nothing: a prefill of one token, a decode of 4096 sequences
    assert phase_of(None, "unknown", "rms_norm", {"token_count": 1}) == ("unknown", "")


def test_rows_decide_in_a_step_of_both() -> None:
    mixed = step_of(["execute_context_2(6144)_generation_3(3)"])
    assert phase_of(mixed, "unknown", "silu_and_mul", {"rows": 6144}) == ("prefill", MIXED_ROWS)
    assert phase_of(mixed, "unknown", "silu_and_mul", {"rows": 3}) == ("decode", MIXED_ROWS)
    assert phase_of(mixed, "unknown", "rms_norm", {"token_count": 6147}) == ("unknown", "")
    equal = step_of(["execute_context_1(3)_generation_3(3)"])
    assert phase_of(equal, "unknown", "rms_norm", {"token_count": 3}) == ("unknown", "")


def test_a_long_annotation_costs_nothing() -> None:
    assert step_of(["step[" + "A" * 1_000_000]) is None
    assert step_of(["execute_context_" + "1" * 1_000_000]) is None

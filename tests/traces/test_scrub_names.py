"""Which names of a trace may stay."""

from __future__ import annotations

import pytest

from traces.phases import step_of
from traces.scrub_names import Names


@pytest.mark.parametrize(
    "text",
    [
        "execute_context_2(6144)_generation_3(3)",
        "execute_6147_context_2(sq6144sk7144sqsq2sqsk2)_generation_3(sq3sk6144sqsq3sqsk6144)",
        "execute_new_1_cached_0",
        "step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]",
        "step[DECODE bs=2 toks=2]",
        "step[MIXED bs=2 c=1 g=1 c_sq=5]",
        "[Executor] _forward_step 12: 1 ctx reqs, 512 ctx tokens, 3 gen reqs",
        "prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
        "decode[bs=64 tok=64 d=64]",
        "draft[0/3 bs=4]",
        "prefill",
        "Decode",
    ],
)
def test_steps_of_engines_stay_and_what_follows_them_goes(text: str) -> None:
    assert Names().annotation(text) == text
    if text[-1] not in "el":  # a plain word with more behind it is no step
        more = f"{text} on gpu-node17 of alice"
        kept = Names().annotation(more)
        assert "alice" not in kept
        assert "node" not in kept
        assert step_of((kept,)) == step_of((more,))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("nn.Module: LlamaRMSNorm_4", "nn.Module: LlamaRMSNorm_0"),
        ("/srv/acme/llama.py(210): forward", "forward"),
        ("acme/llama.py(210): <genexpr>", "<genexpr>"),
        ("<built-in method matmul of type object at 0x7f0012>", "<built-in method matmul>"),
        ("<built-in function linear>", "<built-in function linear>"),
        ("forward", "forward"),
        ("nn.Module: acme/secret_0", "nn.Module: Module1_0"),
        ("acme/llama.py", "python_frame_1"),
    ],
)
def test_frames_lose_their_files(text: str, kept: str) -> None:
    assert Names().frame(text) == kept


def test_names_that_are_kept_and_names_that_are_not() -> None:
    names = Names()
    kernel = "void at::native::(anonymous namespace)::index<c10::BFloat16, long, -2>(int, {lambda()#1})"
    for kept in (
        kernel,
        "Memcpy DtoH (Device -> Pinned)",
        "nvjet_sm90_tst_256x128_64x4",
        "_ZN5aiter24add_rmsnormE",
    ):
        assert names.kernel(kept) == kept
    for private in (
        "/home/alice/k.cu",
        "k@acme",
        "run 10.20.30.40",
        "https://a",
        "k_home/alice",
        "x.py",
        "nöt",
    ):
        assert names.kernel(private).startswith("kernel_")
    assert names.operator("vllm::unified_attention_with_output") == "vllm::unified_attention_with_output"
    assert names.operator("autograd::engine::evaluate_function: MmBackward0").endswith("MmBackward0")
    assert names.operator("vllm::x of alice") == "operation_1"
    assert names.annotation("nccl:all_reduce") == "nccl:all_reduce"
    assert names.annotation("aten::mm") == "aten::mm"
    assert names.annotation("acme::mm") == "range_1"
    assert names.annotation("nccl:alice") == "range_2"
    assert names.dtypes(["c10::BFloat16", "", "acme", ["long int"]]) == [
        "c10::BFloat16",
        "",
        "",
        ["long int"],
    ]


def test_scalars_are_numbers_and_what_goes_is_counted() -> None:
    names = Names()
    assert names.scalars(["", "1e-06", "None", "of alice", "[1, x]", 7]) == '["","1e-06","None","","",""]'
    assert names.removed == {"texts of arguments": 3}
    assert names.scalars("1e-06") == names.scalars(None) == names.scalars(["alice"]) == ""


def test_a_long_annotation_is_looked_at_at_once() -> None:
    assert Names().annotation("sqsq" * 250_000 + "!") == "range_1"
    assert (
        Names()
        .annotation("execute_new_1_cached_0" + "1sq" * 250_000 + "!")
        .startswith("execute_new_1_cached_0")
    )

"""Cases: recorded shapes as cases that the operators' problems accept, and why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atrex.problem import load_problem
from atrex.records import Case
from tests.traces.single import RULES, place
from traces.workload import WorkloadCase, load_workload

BF16, FP8, FP32 = "c10::BFloat16", "c10::Float8_e4m3fn", "float"
# By operator: an entry's operation, kernel, shapes and types (and step), and the case that they are.
SHAPED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "rms_norm",
        {"operator": "_C::rms_norm", "shapes": [[3, 7, 64], [3, 7, 64], [64], []]},
        {},
        {"token_count": 21, "hidden_size": 64},
    ),
    (
        "fused_add_rms_norm",
        {"operator": "_C::fused_add_rms_norm", "shapes": [[21, 64], [21, 64], [64], []]},
        {},
        {"token_count": 21, "hidden_size": 64},
    ),
    (
        "fused_rmsnorm_quant",
        {"operator": "_C::rms_norm_dynamic_per_token_quant", "shapes": [[21, 64], [21, 64], [64], [21, 1]]},
        {},
        {"token_count": 21, "hidden_size": 64},
    ),
    (
        "layer_norm",
        {"operator": "aten::native_layer_norm", "shapes": [[3, 1, 1152], [], [1152], [1152], []]},
        {},
        {"shape": [3, 1, 1152]},
    ),
    (
        "silu_and_mul",
        {"operator": "sgl_kernel::silu_and_mul", "shapes": [[9, 8], [9, 16]]},
        {},
        {"shape": [9, 16]},
    ),
    (
        "reshape_and_cache",
        {
            "operator": "_C_cache_ops::reshape_and_cache_flash",
            "shapes": [[5, 4, 128], [5, 4, 128], [99, 16, 4, 128]],
        },
        {},
        {"shape": [5, 4, 128], "block_size": 16},
    ),
    (
        "per_token_group_quant_fp8",
        {
            "operator": "_C::per_token_group_fp8_quant",
            "shapes": [[5, 512], [5, 512], [5, 4]],
            "dtypes": [BF16, FP8, FP32],
        },
        {"group_size": 128},
        {"token_count": 5, "hidden_size": 512},
    ),
    (
        "fp8_dynamic_per_token_quant",
        {"operator": "_C::dynamic_per_token_scaled_fp8_quant", "shapes": [[5, 512], [5, 512], [5, 1]]},
        {},
        {"token_count": 5, "hidden_size": 512},
    ),
    (
        "block_scaled_mm",
        {
            "operator": "aten::_scaled_mm",
            "shapes": [[64, 4096], [4096, 512], [64, 32], [32, 4]],
            "dtypes": [FP8, FP8, FP32, FP32],
        },
        {"group_n": 128, "group_k": 128},
        {"m": 64, "n": 512, "k": 4096},
    ),
    (
        "block_scaled_mm",
        {
            "operator": "vllm::rocm_aiter_gemm_w8a8_blockscale",
            "shapes": [[9, 256], [512, 256], [9, 2], [4, 2]],
        },
        {"group_n": 128, "group_k": 128},
        {"m": 9, "n": 512, "k": 256},
    ),
    (
        "fused_moe",
        {
            "operator": "vllm::inplace_fused_experts",
            "kernel": "fused_moe_kernel",
            "shapes": [[64, 2048], [128, 1536, 2048], [128, 2048, 768], [64, 8], [64, 8]],
            "dtypes": [BF16, BF16, BF16, FP32, "int"],
            "launches": 4,
        },
        {"num_experts": 128, "intermediate_size": 768, "top_k": 8},
        {"token_count": 64, "hidden_size": 2048, "num_experts": 128, "intermediate_size": 768, "top_k": 8},
    ),
    (
        "fp8_blockscale_fused_moe",
        {
            "operator": "sglang::inplace_fused_experts",
            "kernel": "fused_moe_kernel",
            "shapes": [[64, 2048], [128, 1536, 2048], [128, 2048, 768], [64, 8], [64, 8]],
            "dtypes": [BF16, FP8, FP8, FP32, "int"],
            "launches": 4,
        },
        {"num_experts": 128, "intermediate_size": 768, "top_k": 8},
        {"token_count": 64, "hidden_size": 2048, "num_experts": 128, "intermediate_size": 768, "top_k": 8},
    ),
    (
        "moe_topk_gating_softmax",
        {"operator": "_moe_C::topk_softmax", "shapes": [[9, 8], [9, 8], [9, 8], [9, 128]]},
        {"top_k": 8},
        {"token_count": 9, "num_experts": 128},
    ),
    (
        "moe_sum_reduce",
        {"operator": "_moe_C::moe_sum", "shapes": [[9, 8, 2048], [9, 2048]]},
        {},
        {"token_count": 9, "top_k": 8, "hidden_size": 2048},
    ),
    (
        "fused_qkv_rope",
        {
            "operator": "_C::rotary_embedding",
            "shapes": [[9], [9, 32, 128], [9, 8, 128], [], [4096, 64]],
            "dtypes": ["long int", BF16, BF16, "Scalar", BF16],
        },
        {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "rope_dim": 64},
        {"total_tokens": 9, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "dtype": "bf16"},
    ),
    (
        "causal_conv1d",
        {"operator": "sgl_kernel::causal_conv1d_fwd", "shapes": [[4096, 300], [4096, 4], [4096]]},
        {},
        {"dim": 4096, "token_count": 300, "width": 4},
    ),
    (
        "attention_forward",
        {
            "operator": "aten::_flash_attention_forward",
            "module": "SiglipAttention",
            "shapes": [[2, 720, 16, 72], [2, 720, 16, 72], [2, 720, 16, 72]],
        },
        {},
        {"num_heads": 16, "head_dim": 72, "seq_lens": [[720, 2]]},
    ),
    (
        "unified_attention",
        {
            "operator": "_vllm_fa3_C::fwd",
            "kernel": "void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>",
            "shapes": [[9, 32, 128], [900, 16, 8, 128], [900, 16, 8, 128]],
            "annotations": ("prefill[bs=2 tok=9 ctx=[4, 5]]",),
        },
        {},
        {
            "num_query_heads": 32,
            "num_kv_heads": 8,
            "head_size": 128,
            "block_size": 16,
            "seq_lens": [[4, 1], [5, 1]],
        },
    ),
    (
        "paged_attention_decode",
        {
            "operator": "_C::paged_attention_v1",
            "shapes": [[1, 32, 128], [1, 32, 128], [900, 8, 16, 16, 8], [900, 8, 128, 16]],
            "dtypes": [BF16, BF16, BF16, BF16],
            "annotations": ("step[DECODE bs=1 g_sqsq=1 g_sqsk=30 g_sk=30]",),
        },
        {},
        {
            "num_seqs": 1,
            "num_query_heads": 32,
            "num_kv_heads": 8,
            "head_size": 128,
            "block_size": 16,
            "seq_lens": [[30, 1]],
            "dtype": "bf16",
        },
    ),
    (
        "mla_decode_attention",
        {
            "operator": "vllm::rocm_aiter_mla_decode_fwd",
            "kernel": "mla_a16w16_qh16_m16x4",
            "shapes": [[1, 16, 576], [900, 1, 1, 576], [1, 16, 512]],
            "annotations": ("step[DECODE bs=1 g_sqsq=1 g_sqsk=30 g_sk=30]",),
        },
        {"nhead": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
        {"nhead": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "seq_lens": [[30, 1]]},
    ),
]


@pytest.mark.parametrize(("operator", "fields", "init", "input"), SHAPED)
def test_shapes_become_a_case_of_the_problem(
    operator: str, fields: dict[str, Any], init: dict[str, Any], input: dict[str, Any]
) -> None:
    found = place(**fields)
    assert (found.target, found.why) == (operator, "")
    assert (found.init, found.input) == (init, input)
    WorkloadCase(shape=0, init=found.init, input=found.input)  # a line of a workload
    case = Case(operator=operator, id="x", init=found.init, input=found.input, phase="prefill", weight=1.0)
    problem = load_problem(operator)
    assert problem.complaint(case) == ""
    assert problem.shape(case).dims


def test_every_rule_with_a_case_is_for_names_of_its_problem() -> None:
    workload = load_workload("atrex-bench")
    for compiled in RULES.compiled:
        if compiled.case:
            operator = compiled.rule.target
            spec = load_problem(operator).spec
            known = {*spec.init, *spec.dims, *spec.lengths}
            for case in workload.cases(operator):
                known |= {*case.init, *case.input}
            assert set(compiled.rule.case) <= known, compiled.rule.name


def test_launches_become_calls() -> None:
    moe = {"operator": "vllm::inplace_fused_experts", "kernel": "fused_moe_kernel"}
    assert place(**moe, launches=4).calls == 2  # two launches a call
    assert place(**moe, launches=1).calls == 1
    assert place(kernel="void flash::flash_fwd_splitkv_combine_kernel<>()", launches=4).calls == 0
    assert place(kernel="void vllm::rms_norm_kernel<>()", launches=4).calls == 4


def test_an_illegal_case_says_why_and_nothing_fails() -> None:
    paged = {
        "operator": "_vllm_fa3_C::fwd",
        "kernel": "FlashAttnFwdSm90",
        "annotations": ("prefill[bs=1 tok=4 ctx=[4]]",),
    }
    found = place(**paged, shapes=[[4, 32, 128], [900, 1, 8, 128], []])
    assert not found.has_case
    assert (
        found.why
        == "outside of the operator's domain: input block_size is 1; legal is 8 to 1024 in steps of 8"
    )
    chunk = place(operator="aten::_cudnn_attention_forward", shapes=[[1, 8, 64, 64], [1, 8, 512, 64], []])
    assert "has 64 queries over 512 keys" in chunk.why
    for shapes in ([[0]], [[]], [[2**62, 2**62]], [[-1, -5]], [["a"]], "nonsense", "[[1e999]]"):
        odd = place(operator="aten::native_layer_norm", shapes=shapes)
        assert odd.target == "layer_norm"
        assert odd.why
    most = place(operator="aten::_cudnn_attention_forward", shapes=[[10**12, 8, 1, 64], [10**12, 8, 9, 64]])
    assert "more than any batch has" in most.why


NUMBERS = st.integers(-2, 1 << 70) | st.floats() | st.none() | st.text(max_size=3)
ANY_SHAPES = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=5), max_leaves=20)


@settings(max_examples=150, deadline=None)
@given(st.lists(ANY_SHAPES | st.lists(st.integers(0, 1 << 40), max_size=4), max_size=6), st.data())
def test_no_shapes_make_it_fail(shapes: list[Any], data: st.DataObject) -> None:
    """Whatever a file claims, an entry has a legal case, or says why it has none."""
    fields = data.draw(st.sampled_from([fields for _, fields, _, _ in SHAPED]))
    found = place(**(fields | {"shapes": json.dumps(shapes)}))
    assert not found.ours or found.has_case != bool(found.why)
    if found.has_case:
        case = Case(
            operator=found.target, id="x", init=found.init, input=found.input, phase="decode", weight=1
        )
        assert load_problem(found.target).complaint(case) == ""


def test_lengths_that_no_annotation_gives_are_not_guessed() -> None:
    paged = {
        "operator": "_vllm_fa3_C::fwd",
        "kernel": "FlashAttnFwdSm90",
        "shapes": [[9, 32, 128], [900, 16, 8, 128], []],
    }
    assert "not in the shapes, nor in a step's annotation" in place(**paged).why
    assert (
        "annotate steps in detail"
        in place(**paged, annotations=("execute_context_2(9)_generation_0(0)",)).why
    )
    mixed = place(**paged, annotations=("execute_context_2(9)_generation_3(3)",))
    assert (mixed.has_case, mixed.phase) == (False, "unknown")

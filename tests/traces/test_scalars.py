"""Scalar arguments: where PyTorch and the engines have them, and the cases that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from atrex.problem import load_problem
from atrex.records import Case
from tests.traces.kineto_made import Event, kernel, launch
from tests.traces.single import RULES, place
from traces.classify import classify
from traces.ingest import ingest
from traces.placed import Placed
from traces.scalars import is_kept, kept, value

BF16 = "c10::BFloat16"
PAGED = {"num_query_heads": 32, "num_kv_heads": 8, "head_size": 128, "block_size": 16}


def row(count: int, **values: str) -> list[str]:
    """Scalars of an operation of `count` inputs: `_3="8"` is input 3."""
    return [values.get(f"_{number}", "") for number in range(count)]


# By operator: an entry's operation, kernel, shapes and scalars, and the case that they are.
SCALARS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "rms_norm",
        {"operator": "_C::rms_norm", "shapes": [[9, 64], [9, 64], [64], []], "scalars": row(4, _3="1e-05")},
        {"eps": 1e-5},
        {"token_count": 9, "hidden_size": 64},
    ),
    (
        "rms_norm",
        {"operator": "vllm_ir::rms_norm", "shapes": [[9, 64], [64], [], []], "scalars": row(4, _2="1e-05")},
        {"eps": 1e-5},
        {"token_count": 9, "hidden_size": 64},
    ),
    (
        "fused_add_rms_norm",
        {
            "operator": "sgl_kernel::fused_add_rmsnorm",
            "shapes": [[9, 64], [9, 64], [64], [], []],
            "scalars": row(5, _3="1e-06", _4="False"),
        },
        {"eps": 1e-6},
        {"token_count": 9, "hidden_size": 64},
    ),
    (
        "fused_rmsnorm_quant",
        {
            "operator": "_C::rms_norm_dynamic_per_token_quant",
            "shapes": [[21, 64], [21, 64], [64], [21, 1], [], [], [21, 64]],
            "scalars": row(7, _4="1e-06"),
        },
        {"eps": 1e-6},
        {"token_count": 21, "hidden_size": 64},
    ),
    (
        "moe_sum_reduce",
        {
            "operator": "sgl_kernel::moe_sum_reduce",
            "shapes": [[9, 8, 64], [9, 64], []],
            "scalars": row(3, _2="2.5"),
        },
        {"routed_scaling_factor": 2.5},
        {"token_count": 9, "top_k": 8, "hidden_size": 64},
    ),
    (
        "moe_align_block_size",
        {
            "operator": "_moe_C::moe_align_block_size",
            "kernel": "void vllm::moe::moe_align_block_size_kernel<int>()",
            "shapes": [[9, 8], [], [], [17000], [140], [1], []],
            "scalars": row(7, _1="128", _2="64"),
        },
        {"num_experts": 128, "block_size": 64},
        {"token_count": 9, "top_k": 8, "num_experts": 128},
    ),
    (
        "moe_count_and_sort",
        {
            "operator": "_moe_C::moe_align_block_size",
            "kernel": "void vllm::moe::count_and_sort_expert_tokens_kernel<int>()",
            "shapes": [[9, 8], [], [], [17000], [140], [1], []],
            "scalars": row(7, _1="128", _2="64"),
        },
        {"num_experts": 128, "block_size": 64},
        {"token_count": 9, "top_k": 8, "num_experts": 128},
    ),
    (
        "moe_topk_gating_softmax",
        {
            "operator": "sgl_kernel::moe_fused_gate",
            "shapes": [[9, 256], [256], [], [], [], [], [], []],
            "scalars": row(8, _2="8", _3="4", _4="6", _5="0", _6="2.5", _7="False"),
        },
        {"top_k": 6, "num_expert_groups": 8, "topk_group": 4},
        {"token_count": 9, "num_experts": 256},
    ),
    (
        "moe_topk_gating_softmax",
        {
            "operator": "_moe_C::grouped_topk",
            "shapes": [[9, 256], [], [], [], [], [], [256], []],
            "scalars": row(8, _1="8", _2="4", _3="6", _4="True", _5="2.5", _7="1"),
        },
        {"top_k": 6, "num_expert_groups": 8, "topk_group": 4},
        {"token_count": 9, "num_experts": 256},
    ),
    (
        "moe_topk_gating_softmax",
        {
            "operator": "_moe_C::grouped_topk",
            "shapes": [[9, 256], [9, 256], [], [], [], [], []],
            "scalars": row(7, _2="8", _3="4", _4="6", _5="True", _6="2.5"),
        },
        {"top_k": 6, "num_expert_groups": 8, "topk_group": 4},
        {"token_count": 9, "num_experts": 256},
    ),
    (
        "fused_qk_rmsnorm",
        {
            "operator": "_C::fused_qk_norm_rope",
            "shapes": [[9, 5120], [], [], [], [], [], [128], [128], [4096, 128], [], [9]],
            "dtypes": [BF16, *["Scalar"] * 5, BF16, BF16, BF16, "Scalar", "long int"],
            "scalars": row(11, _1="32", _2="4", _3="4", _4="128", _5="1e-06", _9="True"),
        },
        {"head_num": 32, "kv_head_num": 4, "size_per_head": 128, "eps": 1e-6},
        {"num_tokens": 9, "head_num": 32, "kv_head_num": 4, "size_per_head": 128, "dtype": "bf16"},
    ),
    (
        "fused_qkv_rope",
        {
            "operator": "_C::rotary_embedding",
            "shapes": [[9], [9, 4096], [9, 1024], [], [4096, 64], []],
            "dtypes": ["long int", BF16, BF16, "Scalar", BF16, "Scalar"],
            "scalars": row(6, _3="128", _5="True"),
        },
        {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "rope_dim": 64},
        {"total_tokens": 9, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "dtype": "bf16"},
    ),
    (
        "unified_attention",
        {
            "operator": "_vllm_fa3_C::fwd",
            "kernel": "void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>",
            "shapes": [[512, 32, 128], [900, 16, 8, 128], [900, 16, 8, 128], [], [], [], [512, 32, 128], [3]],
            "scalars": row(36, _12="256", _13="256", _24="True"),
        },
        {},
        {**PAGED, "seq_lens": [[256, 2]]},
    ),
    (
        "unified_attention",
        {
            "operator": "_vllm_fa2_C::varlen_fwd",
            "kernel": "void flash::flash_fwd_splitkv_kernel<>()",
            "shapes": [[512, 32, 128], [900, 16, 8, 128], [900, 16, 8, 128], [512, 32, 128], [5]],
            "scalars": row(20, _10="128", _11="128", _12="0.", _15="True"),
        },
        {},
        {**PAGED, "seq_lens": [[128, 4]]},
    ),
    (
        "attention_forward",
        {
            "operator": "flash_attn::_flash_attn_varlen_forward",
            "kernel": "void flash::flash_fwd_kernel<>()",
            "shapes": [[1440, 16, 72], [1440, 16, 72], [1440, 16, 72], [3], [3]],
            "scalars": row(10, _5="720", _6="720", _9="False"),
        },
        {},
        {"num_heads": 16, "head_dim": 72, "seq_lens": [[720, 2]]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "fields", "init", "input"), SCALARS)
def test_scalars_become_a_case_of_the_problem(
    operator: str, fields: dict[str, Any], init: dict[str, Any], input: dict[str, Any]
) -> None:
    found = place(**fields)
    assert (found.target, found.why) == (operator, "")
    assert (found.init, found.input) == (init, input)
    case = Case(operator=operator, id="x", init=found.init, input=found.input, phase="prefill", weight=1.0)
    assert load_problem(operator).complaint(case) == ""


def test_what_scalars_leave_open_is_not_guessed() -> None:
    """Shared experts among the chosen; sequences of several lengths; keys of which some were there before."""
    shared = {"operator": "sgl_kernel::moe_fused_gate", "shapes": [[9, 256], [256], [], [], [], []]}
    assert not place(**shared, scalars=row(8, _2="8", _3="4", _4="9", _5="1")).has_case
    packed = {
        "operator": "_vllm_fa3_C::fwd",
        "kernel": "FlashAttnFwdSm90",
        "shapes": [[512, 32, 128], [900, 16, 8, 128], [900, 16, 8, 128], [], [], [], [512, 32, 128], [4]],
    }
    for most, keys, causal in (("256", "256", "True"), ("171", "171", "True"), ("128", "999", "True")):
        found = place(**packed, scalars=row(36, _12=most, _13=keys, _24=causal))
        assert (found.target, found.has_case) == ("unified_attention", False)
    align = place(
        operator="_moe_C::moe_align_block_size", kernel="moe_align_block_size_kernel", shapes=[[9, 8]]
    )
    assert align.why == "num_experts: scalar input 1 was not recorded"


@pytest.mark.parametrize(
    ("inner", "kernel", "causal", "mask"),
    [
        ("_cudnn_attention_forward", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 10, 3),
        ("_flash_attention_forward", "void pytorch_flash::flash_fwd_kernel<>()", 8, None),
        ("_efficient_attention_forward", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80()", 9, 3),
    ],
)
def test_is_causal_tells_which_attention_it_is(
    inner: str, kernel: str, causal: int, mask: int | None
) -> None:
    heads_first = "cudnn" in inner

    def attention(queries: int, keys: int, flag: str, masked: bool = False, module: str = "") -> Placed:
        sizes = [[1, 8, n, 64] if heads_first else [1, n, 8, 64] for n in (queries, keys, keys)]
        shapes: list[Any] = [*sizes, *[[] for _ in range(10)]]
        dtypes = [BF16] * 3 + [""] * 10
        if masked and mask is not None:
            shapes[mask], dtypes[mask] = [1, 1, queries, keys], BF16
        value = {"True": "1", "False": "0"}[flag] if "efficient" in inner else flag
        scalars = row(13, **{f"_{causal}": value})
        return place(
            operator=f"aten::{inner}",
            kernel=kernel,
            shapes=shapes,
            dtypes=dtypes,
            scalars=scalars,
            module=module,
        )

    assert attention(64, 64, "True").target == "unified_attention"
    assert attention(64, 64, "False").target == "attention_forward"
    assert attention(64, 64, "False").input == {"num_heads": 8, "head_dim": 64, "seq_lens": [[64, 1]]}
    assert attention(1, 64, "False").target == "unified_attention"  # decode sees all keys
    if mask is not None:
        assert attention(64, 64, "False", masked=True).target == "unified_attention"
    if "efficient" not in inner:
        assert attention(64, 64, "True", module="CLIPAttention").target == "unified_attention"
    assert attention(64, 64, "False", module="CLIPAttention").target == "attention_forward"


# Where a rule of an aten operation reads an argument, and its name in PyTorch's schema.
ARGUMENTS = [
    ("_fused_rms_norm", 3, "eps"),
    ("rms_norm", 3, "eps"),
    ("native_layer_norm", 4, "eps"),
    ("layer_norm", 4, "eps"),
    ("topk", 1, "k"),
    ("_cudnn_attention_forward", 3, "attn_bias"),
    ("_cudnn_attention_forward", 10, "is_causal"),
    ("_flash_attention_forward", 8, "is_causal"),
    ("_efficient_attention_forward", 3, "bias"),
    ("_efficient_attention_forward", 9, "custom_mask_type"),
]


@pytest.mark.parametrize(("operation", "place", "name"), ARGUMENTS)
def test_pytorchs_schemas_have_the_arguments_there(operation: str, place: int, name: str) -> None:
    schema = getattr(torch.ops.aten, operation).default._schema
    assert schema.arguments[place].name == name


def recorded(tmp_path: Path) -> tuple[Placed, ...]:
    """What torch.profiler writes of some operations, each made to launch a kernel by hand: no GPU needed."""
    x, weight, bias = torch.randn(6, 32), torch.ones(32), torch.zeros(32)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        torch.ops.aten._fused_rms_norm(x, [32], weight, 3e-5)
        torch.nn.functional.layer_norm(x, [32], weight, bias, 1e-12)
        torch.topk(x, 3)
    path = tmp_path / "t.json"
    recording.export_chrome_trace(str(path))
    trace = json.loads(path.read_text())
    kernels = {"aten::_fused_rms_norm": "rms", "aten::native_layer_norm": "norm", "aten::topk": "gatherTopK"}
    events: list[Event] = []
    for number, one in enumerate(each for each in trace["traceEvents"] if each.get("name") in kernels):
        host = {name: one[name] for name in ("pid", "tid")}
        events += [
            {**launch(number + 1, one["ts"]), **host},
            kernel(number + 1, one["ts"] + 1e6 * (number + 1), name=kernels[one["name"]]),
        ]
    path.write_text(json.dumps({"traceEvents": [*trace["traceEvents"], *events]}))
    return classify([ingest(path)], RULES)


def test_what_pytorch_records_becomes_arguments_of_the_problems(tmp_path: Path) -> None:
    found = {one.target: (one.init, one.input) for one in recorded(tmp_path) if one.has_case}
    assert found == {
        "rms_norm": ({"eps": 3e-5}, {"token_count": 6, "hidden_size": 32}),
        "layer_norm": ({"eps": 1e-12}, {"shape": [6, 32]}),
        "moe_topk_gating_softmax": ({"top_k": 3}, {"token_count": 6, "num_experts": 32}),
    }


TEXTS = st.one_of(
    st.text(max_size=8),
    st.floats().map(repr),
    st.integers(-(1 << 200), 1 << 200).map(str),
    st.sampled_from(["True", "False", "None", "[]", "[1, 2]", "-inf", "nan", "1e999", "[None, 1.]", "." * 9]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS | st.none() | st.integers() | st.lists(TEXTS, max_size=2), max_size=6))
def test_what_is_kept_has_a_value_and_is_kept_again(texts: list[Any]) -> None:
    found = kept(texts)
    again = json.loads(found) if found else []
    assert [text for text in again if text] == [text for text in texts if is_kept(text)]
    assert kept(again) == found
    for text in again:
        if text:
            value(text)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(TEXTS, max_size=14))
def test_no_scalars_make_it_fail(data: st.DataObject, texts: list[str]) -> None:
    """Whatever a file claims, an entry has a legal case, or says why it has none."""
    fields = data.draw(st.sampled_from([fields for _, fields, _, _ in SCALARS]))
    found = place(**(fields | {"scalars": texts}))
    assert not found.ours or found.has_case != bool(found.why)
    if found.has_case:
        case = Case(
            operator=found.target, id="x", init=found.init, input=found.input, phase="decode", weight=1
        )
        assert load_problem(found.target).complaint(case) == ""

"""Placing: recorded traces wholly, names of ten engines, cases that the problems accept, suggestions."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.traces.single import RULES, place
from traces.classify import classify, load_rules, suggest
from traces.ingest import ingest
from traces.placed import UNPLACED, Placed
from traces.profile import Profile
from traces.rules import Finder, Texts

HERE = Path(__file__).parent
RECORDED = sorted(path.name.removesuffix(".json.gz") for path in HERE.glob("recorded/*.json.gz"))
ENGINES = yaml.safe_load((HERE / "kernel_names.yaml").read_text())


@cache
def profile(name: str) -> Profile:
    return ingest(HERE / f"recorded/{name}.json.gz")


@cache
def placed(name: str) -> tuple[Placed, ...]:
    return classify([profile(name)], RULES)


def times(name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in placed(name):
        found[one.target] += one.entry.device_us
    return found


# -- recorded traces -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_all_time_of_a_recorded_trace_is_accounted_for(name: str) -> None:
    found = placed(name)
    assert [one.entry for one in found] == list(profile(name).entries)  # none lost, none twice
    total = profile(name).device_us
    assert sum(times(name).values()) == pytest.approx(total, rel=1e-12)
    assert times(name)[UNPLACED] < 0.01 * total
    assert times(name)["other"] < 0.01 * total  # nor is it swept under that name
    assert {one.target for one in found} <= {*RULES.targets, UNPLACED}


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "two-streams"])
def test_the_phases_of_a_recorded_trace(name: str) -> None:
    phase = "decode" if "decode" in name else "prefill"
    assert {(one.phase, one.phase_from) for one in placed(name)} == {(phase, "step annotation")}


def test_without_a_step_the_phase_is_not_known() -> None:
    assert {(one.phase, one.phase_from) for one in placed("two-streams")} == {("unknown", "")}


def cases(name: str, operator: str) -> list[tuple[dict[str, Any], int]]:
    return [(one.input, one.calls) for one in placed(name) if one.target == operator and one.has_case]


def test_stacks_tell_the_operators_of_an_eager_llama() -> None:
    """Two layers, one step: five norms, two MLPs, two attentions and two rotations, of 8 tokens."""
    name = "llama-decode-stacks"
    assert cases(name, "rms_norm") == [({"token_count": 8, "hidden_size": 512}, 5)]
    assert cases(name, "silu_and_mul") == [({"shape": [8, 3072]}, 2)]
    (attention, calls), *none = cases(name, "unified_attention")
    assert (calls, none) == (2, [])
    assert attention["query_lens"] == [[1, 8]]
    assert attention["seq_lens"] == [[192, 8]]
    assert sum(one.calls for one in placed(name) if one.target == "fused_qkv_rope") == 2
    modules = {one.entry.module for one in placed(name) if one.target == "rms_norm"}
    assert all("RMSNorm" in module for module in modules)
    missed = [one for one in placed(name) if "RMSNorm" in one.entry.module and one.target != "rms_norm"]
    assert missed == []


def test_inductors_kernels_tell_what_they_fused() -> None:
    """Two layers, three steps of 512 tokens: the first norm takes the embedding, four more add a residual."""
    name = "llama-prefill-inductor"
    assert cases(name, "rms_norm") == [({"token_count": 512, "hidden_size": 512}, 3)]
    assert cases(name, "fused_add_rms_norm") == [({"token_count": 512, "hidden_size": 512}, 3)] * 4
    assert cases(name, "silu_and_mul") == [({"shape": [512, 3072]}, 6)]
    assert sum(one.calls for one in placed(name) if one.target == "fused_qkv_rope") == 6
    assert [calls for _, calls in cases(name, "unified_attention")] == [6]


def test_the_routing_of_a_mixture_of_experts_is_found() -> None:
    for name in ("moe-prefill", "moe-decode"):
        found = [one for one in placed(name) if one.target == "moe_topk_gating_softmax"]
        assert sum(one.calls for one in found) == 6  # two layers, three steps
        tokens = 256 if name == "moe-prefill" else 8
        assert cases(name, "moe_topk_gating_softmax") == [({"token_count": tokens, "num_experts": 8}, 6)]
        assert [one.init for one in found if one.has_case] == [{"top_k": 2}]
        assert times(name)["moe_topk_gating_softmax"] > 0.05 * profile(name).device_us
        assert times(name)["grouped_gemm"] > 0.05 * profile(name).device_us


def test_prefills_shapes_become_a_case() -> None:
    ((input, calls),) = cases("llama-prefill", "unified_attention")
    assert calls == 6
    assert input == {
        "num_seqs": 1,
        "seq_lens": [[512, 1]],
        "num_query_heads": 8,
        "num_kv_heads": 2,
        "head_size": 64,
        "block_size": 16,
    }


def test_what_has_no_shapes_says_why() -> None:
    for name, why in {
        "llama-decode-graph": "replayed from a captured graph: no shapes",
        "llama-decode-plain": "shapes were not recorded (record_shapes)",
        "own-kernels": "launched outside of any operation: no shapes",
    }.items():
        assert {one.why for one in placed(name) if one.ours and one.calls} == {why}
        assert not any(one.has_case for one in placed(name))


def test_communication_is_told_from_work() -> None:
    assert 0.75 < times("llama-tp2-rank0")["collective"] / profile("llama-tp2-rank0").device_us < 0.8
    ours = {one.target for one in placed("llama-tp2-rank0") if one.ours}
    assert ours == {"unified_attention"}


# -- names of engines ------------------------------------------------------------------------------


def test_the_table_of_names_is_wide_enough() -> None:
    assert len(ENGINES) >= 10
    assert sum(map(len, ENGINES.values())) >= 100


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine in ENGINES for name in ENGINES[engine]]
)
def test_names_of_engines(engine: str, name: str) -> None:
    operator, _, kernel = name.rpartition(" > ")
    assert place(kernel=kernel, operator=operator).target == ENGINES[engine][name]


def test_a_name_of_none_is_unplaced() -> None:
    found = place(kernel="void somebody::frobnicate<int>(int)")
    assert (found.target, found.rule, found.ours) == (UNPLACED, "", False)


def test_the_order_of_profiles_and_entries_is_kept() -> None:
    both = classify([profile("own-kernels"), profile("two-streams")], RULES)
    assert both == placed("own-kernels") + placed("two-streams")
    assert classify([], RULES) == ()


# -- suggestions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [
        "void somebody::frobnicate<int, 4>(int*, float const*)",
        "_frobnicate_kernel_0d1d2de",
        "_ZN8somebody10frobnicateILi4EEEvPT_",
        "void (anonymous namespace)::frobnicate(int)",
        "frob: 'it' \"is\" #1 \\ {x} ☃",
        "f" * 5000,
    ],
)
def test_a_suggested_rule_places_its_entry(kernel: str, tmp_path: Path) -> None:
    unplaced = place(kernel=kernel)
    assert unplaced.target == UNPLACED
    path = tmp_path / "mine.yaml"
    path.write_text("rules:\n" + suggest(unplaced.entry), encoding="utf-8")
    rules = load_rules(path)
    compiled = Finder(rules).find(Texts(unplaced.entry))
    assert compiled is not None
    assert compiled.rule.target == "other"
    assert Finder(rules).find(Texts(unplaced.entry.model_copy(update={"kernel": "another"}))) is None

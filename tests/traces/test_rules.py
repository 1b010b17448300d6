"""The rules' format, and that the built-in rules keep it: each wins its examples, and none is slow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from atrex.errors import UsageError
from traces.names import fused_operations, readable
from traces.patterns import MOST_TEXT, compile_pattern
from traces.phases import step_of
from traces.profile import Entry
from traces.recorded import Recorded, Unknown, recorded
from traces.rules import BUILT_IN, REST, Finder, Rules, Texts, load_rules, operators
from traces.shapes import evaluate, parse_condition, parse_expression

RULES = load_rules()
GOOD: dict[str, Any] = {"name": "mine", "target": "rms_norm", "kernel": "^my_norm", "examples": ["my_norm_7"]}


def written(tmp_path: Path, *rules: dict[str, Any], **file: Any) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"rules": list(rules), **file}))
    return path


def entry(**fields: Any) -> Entry:
    return Entry(**({"kernel": "k", "launches": 1, "device_us": 1.0, "busy_us": 1.0} | fields))


def found(rules: Rules, **fields: Any) -> str:
    compiled = Finder(rules).find(Texts(entry(**fields)))
    return compiled.rule.name if compiled else ""


# -- the built-in rules ----------------------------------------------------------------------------


def test_every_operator_has_a_rule_that_counts_its_calls() -> None:
    assert {c.rule.target for c in RULES.compiled if c.ours and c.rule.main} == set(operators())
    assert len(operators()) == 30


def test_every_class_is_used_and_explained() -> None:
    used = {c.rule.target for c in RULES.compiled if not c.ours}
    assert used == set(RULES.classes)
    assert all(RULES.classes.values())


@pytest.mark.parametrize("compiled", RULES.compiled, ids=lambda c: c.rule.name)
def test_every_rule_wins_its_examples_among_all_rules(compiled: Any) -> None:
    # load_rules checks each file against those after it; this also finds a rule hiding one of a later file
    finder = Finder(RULES)
    for example in compiled.rule.examples:
        winner = finder.find(Texts(example.entry()))
        assert winner is not None
        assert winner.rule.name == compiled.rule.name, example


def test_hostile_names_are_quick_for_every_built_in_rule() -> None:
    names = ["_ZN" + "9" * 5000, "triton_poi_fused_" + "_mean_rsqrt" * 500, "<" * 5000, "x" * 100_000]
    words = ("rms_norm", "quant", "fp8", "gemm", "cub::", "fmhaSm100", "fmoe_", "Rmsnorm2dFwd", "silu_mul")
    names += [f"{word}_" * (MOST_TEXT // len(word)) for word in words]
    for name in names:
        began = time.perf_counter()
        found(RULES, kernel=name, operator=name, module=name, stack=(name,), annotations=(name,))
        assert time.perf_counter() - began < 1.0, name[:40]


# -- files -----------------------------------------------------------------------------------------


def test_rules_of_a_file_come_before_the_built_in_ones(tmp_path: Path) -> None:
    mine = GOOD | {
        "target": "mine_all",
        "kernel": "^void vllm::rms_norm_kernel",
        "examples": ["void vllm::rms_norm_kernel<>"],
    }
    rules = load_rules(written(tmp_path, mine, classes={"mine_all": "of ours"}))
    assert found(rules, kernel="void vllm::rms_norm_kernel<>()") == "mine"
    assert found(rules, kernel="ncclDevKernel_Broadcast") == "nccl"
    assert "mine_all" in rules.targets
    assert "mine_all" not in RULES.targets
    assert found(RULES, kernel="void vllm::rms_norm_kernel<>()") == "rms-norm-kernels"


BAD = {
    "no operator and no class": (
        GOOD | {"target": "rms_nrm"},
        "rule mine: field target: rms_nrm is no operator",
    ),
    "no pattern": (
        {k: v for k, v in GOOD.items() if k != "kernel"},
        "rule mine: field (the rule): matches all",
    ),
    "no example": ({k: v for k, v in GOOD.items() if k != "examples"}, "rule mine: field examples"),
    "an unknown field": (GOOD | {"kernels": "x"}, "rule mine: field kernels"),
    "no regular expression": (GOOD | {"kernel": "(my"}, "rule mine: field kernel: '(my' is no regular"),
    "a slow pattern": (GOOD | {"kernel": "(m+)+y"}, "rule mine: field kernel: a repeat of what varies"),
    "an example that it loses": (
        GOOD | {"kernel": "norm", "examples": ["norm", "other"]},
        "rule mine: field examples: 'other' is matched by no rule",
    ),
    "an example that a built-in rule wins": (
        GOOD | {"examples": ["ncclDevKernel_Broadcast"]},
        "rule mine: field examples: 'ncclDevKernel_Broadcast' is won by rule nccl",
    ),
    "a name taken": (GOOD | {"name": "nccl"}, "rule nccl: field name: another rule has it"),
    "no expression": (
        GOOD | {"case": {"token_count": "dims(0"}},
        "rule mine: field case.token_count: 'dims(0'",
    ),
    "no function": (GOOD | {"case": {"token_count": "open(0)"}}, "no function 'open'; known: dims, ranked"),
    "no comparison": (GOOD | {"where": ["dims(0)"]}, "rule mine: field where: 'dims(0)' compares nothing"),
    "a case of a further kernel": (
        GOOD | {"main": False, "case": {"token_count": 1}},
        "field (the rule): case",
    ),
    "unplaced": (GOOD | {"target": "unplaced"}, "unplaced is what no rule matches"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_rule_is_one_line_with_file_rule_field_and_remedy(tmp_path: Path, case: str) -> None:
    rule, message = BAD[case]
    path = written(tmp_path, rule)
    with pytest.raises(UsageError) as caught:
        load_rules(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: rule ")
    assert message in line
    assert "docs/traces_rules.md" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "text", ["", "rules: 3", "rules: []", "- x", "rules:\n- 5", "rules: [}", "classes: {A b: c}\nrules: [{}]"]
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_rules(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_hidden_rule_is_found(tmp_path: Path) -> None:
    wide = GOOD | {"name": "wide", "kernel": "norm", "examples": ["a_norm"]}
    with pytest.raises(UsageError, match="rule mine: field examples: 'my_norm_7' is won by rule wide"):
        load_rules(written(tmp_path, wide, GOOD))


def test_no_file_and_a_class_that_is_an_operator(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_rules(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="rms_norm is an operator"):
        load_rules(written(tmp_path, GOOD, classes={"rms_norm": "mine"}))


def test_the_built_in_files_name_each_rule_once() -> None:
    names = [rule["name"] for path in (BUILT_IN, REST) for rule in yaml.safe_load(path.read_text())["rules"]]
    assert len(names) == len(set(names)) == len(RULES.compiled)


# -- patterns and names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern", ["^a.*b", "a.*b", "(a|b)c", "^x?y?z{2,5}", r"\bnorm_\d+$", "(?i)(ab)?c(?!d)"]
)
def test_ordinary_patterns_are_accepted(pattern: str) -> None:
    compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|aa)*b",
        "(a?){30}b",
        ".*a.*b",
        "^.*.*.*x",
        r"(a)\1",
        "a?" * 30 + "a" * 30,
        "a" * 1001,
        "[",
    ],
)
def test_patterns_that_may_run_for_long_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        compile_pattern(pattern)


def test_mangled_names_are_read() -> None:
    assert readable("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bE") == "aiter::add_rmsnorm_quant_kernel<IDF16bE"
    assert readable("_Z21fusedQKNormRopeKernelILi128EEvPv") == "fusedQKNormRopeKernel<ILi128EEvPv"
    assert readable("_ZN99x") == "x<"
    assert readable("void f<int>(int)") == "void f<int>(int)"
    assert readable("_Zoom") == "_Zoom"


def test_what_inductor_fused_is_read() -> None:
    named = fused_operations("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0")
    assert all(f"_{operation}_" in named for operation in ("_to_copy", "add", "mean", "mul", "pow", "rsqrt"))
    assert "_copy_add_mean_x_" not in named
    assert fused_operations("triton_poi_fused_mul_silu_1") == "_mul_silu_"
    assert fused_operations("triton_rms_norm") == ""


# -- the language of shapes ------------------------------------------------------------------------


def inputs(
    *dims: Any, dtypes: tuple[str, ...] = (), scalars: tuple[str, ...] = (), step: str = ""
) -> Recorded:
    shapes, names, values = (json.dumps(list(texts)) for texts in (dims, dtypes, scalars))
    made = entry(operator="op", shapes=shapes, dtypes=names, scalars=values, annotations=(step,))
    return recorded(made, step_of([step]))


def value(text: str, from_: Recorded) -> Any:
    return evaluate([("x", parse_expression(text))], from_)["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dims(0)[0]", 4),
        ("dims(0)[-1]", 128),
        ("rows(dims(0))", 8),
        ("last(dims(1))", 128),
        ("size(dims(0))", 1024),
        ("rank(dims(0))", 3),
        ("dims(0)", [4, 2, 128]),
        ("dims(3, 1)[1]", 7),
        ("ranked(1)[0]", 128),
        ("largest()", [4, 2, 128]),
        ("2 * dims(0)[1] + dims(0)[0] / 4", 5),
        ("(dims(0)[0] + 4) / dims(0)[1] - 1", 3),
        ("dtype(0)", "bf16"),
        ("dtype(1)", "fp8"),
        ("'causal'", "causal"),
        ("runs(dims(0)[1], 3)", [[2, 3]]),
        ("pair(1, dims(0)[0])", [1, 4]),
        ("16", 16),
    ],
)
def test_expressions(text: str, expected: Any) -> None:
    types = ("c10::BFloat16", "c10::Float8_e4m3fn", "Scalar", "TensorList")
    assert value(text, inputs([4, 2, 128], [128], [], [[1, 6], [1, 7]], dtypes=types)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dims(1)[0]", "input 1 is no tensor"),
        ("dims(9)[0]", "the operation has no input 9"),
        ("dims(0)[5]", r"no extent 5 in \[4, 128\]"),
        ("dims(0)[0] / 3", "4 / 3 is not whole"),
        ("dims(0)[0] / 0", "4 / 0 is not whole"),
        ("dims(0) + 1", r"\+ of what is no integer"),
        ("scalar(0)", "scalar input 0 was not recorded"),
        ("scalar(4)", "scalar input 4 was not recorded"),
        ("scalar(9)", "scalar input 9 was not recorded"),
        ("scalar(1) + 1", r"\+ of what is no integer"),
        ("scalar(2) * 2", r"\* of what is no integer"),
        ("scalar(dims(0))", "not in the shapes"),
        ("absent(9)", "the operation has no input 9"),
        ("dtype(7)", "type of input 7"),
        ("ranked(4)", "no input has 4 extents"),
        ("key_lens()", "not in the shapes, nor in a step's annotation"),
        ("runs(1, 10000000)", "more than any batch has"),
        ("dims(dims(0))", "not in the shapes"),
        ("rows(3)", "no extents"),
    ],
)
def test_what_the_shapes_do_not_hold_is_said(text: str, reason: str) -> None:
    with pytest.raises(Unknown, match=f"^x: .*{reason}"):
        value(text, inputs([4, 128], [], [[2], [3]], scalars=("", "1e-06", "True", "[1, 2]", "None")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scalar(1)", 1e-6),
        ("scalar(2)", True),
        ("scalar(3)", [512, -1]),
        ("scalar(3)[0] / 2", 256),
        ("scalar(4) * dims(0)[0]", 32),
        ("scalar(5)", -65504.0),
        ("absent(0)", 0),
        ("absent(1)", 0),
        ("absent(6)", 1),
    ],
)
def test_scalars(text: str, expected: Any) -> None:
    types = ("float", "Scalar", "Scalar", "ScalarList", "Scalar", "Scalar", "")
    values = ("", "1e-06", "True", "[512, -1]", "8", "-65504.", "")
    found = value(text, inputs([4, 2], [], [], [], [], [], [], dtypes=types, scalars=values))
    assert (found, type(found)) == (expected, type(expected))


def test_an_option_that_was_not_recorded_is_left_out() -> None:
    expressions = [
        (name, parse_expression(text)) for name, text in (("eps", "option(1)"), ("k", "dims(0)[0]"))
    ]
    assert evaluate(expressions, inputs([4], [], scalars=("", "1e-05"))) == {"eps": 1e-5, "k": 4}
    for unknown in ((), ("", ""), ("", "None"), ("", "/home/alice")):
        assert evaluate(expressions, inputs([4], [], scalars=unknown)) == {"k": 4}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "dims(0)[",
        "dims(0)[x]",
        "dims(0)[0]]",
        "a",
        "1 2",
        "dims()",
        "x.y",
        "dims(0)[1.5]",
        "9" * 201,
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_expression(text)


def test_conditions() -> None:
    from_ = inputs([4, 128], dtypes=("float",))
    assert parse_condition("dims(0)[1] <= 128")(from_)
    assert not parse_condition("dims(0)[1] < 128")(from_)
    assert parse_condition("dtype(0) == 'fp32'")(from_)
    assert not parse_condition("dims(1)[0] == dims(1)[0]")(from_)  # what is unknown holds nothing
    assert not parse_condition("dims(0) < 3")(from_)
    assert not parse_condition("scalar(0) == 0")(from_)
    causal = inputs([4], [], scalars=("", "True"))
    assert parse_condition("scalar(1) == 1")(causal)
    assert not parse_condition("scalar(1) == 0")(causal)


def test_lengths_come_from_the_step() -> None:
    from_ = inputs([12, 8, 64], step="prefill[bs=3 tok=12 ctx=[5, 5, 2]]")
    assert value("query_lens()", from_) == [[5, 2], [2, 1]]
    assert value("key_lens()", from_) == [[5, 2], [2, 1]]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"graph": True, "operator": "op", "shapes": "[[1]]"}, "captured graph"),
        ({"shapes": "[[1]]"}, "outside of any operation"),
        ({"operator": "op"}, "shapes were not recorded"),
        ({"operator": "op", "shapes": "[[1"}, "cannot be read"),
        ({"operator": "op", "shapes": "{}"}, "cannot be read"),
        ({"operator": "op", "shapes": "[" * 60000}, "cannot be read"),
        ({"operator": "op", "shapes": "[1," * 40000}, "cannot be read"),
    ],
)
def test_why_there_are_no_shapes(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unknown, match=reason):
        recorded(entry(**fields), None)

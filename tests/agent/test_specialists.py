"""Files made one: names move by scope and nothing else does, and each bucket gets the part it should."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agent import dispatch, renaming
from agent.buckets import Bucket, Grid, compose
from agent.dispatch import Rule
from agent.renaming import Unmergeable
from agent.specialists import Undispatchable, merge, visible
from atrex.candidate import Candidate, detect_dsl
from atrex.fallback.records import Outcome
from atrex.fallback.static import analyse_text, operator_of
from atrex.judge import Engine
from atrex.problem import load_problem, operators
from atrex.protocol import Call, InputSpec
from atrex.records import Case, Status
from atrex.verify import Verifier

ROOT = Path(__file__).parents[2]
VECTOR_ROWS = ROOT / "knowledge/kernels/cpp/rms_norm/vector_rows.py"
AVX512 = ROOT / "tests/honest/rms_norm/cpp/avx512.py"
SCALAR = ROOT / "tests/honest/rms_norm/cpp/scalar.py"
ROPE = ROOT / "knowledge/kernels/triton/fused_qkv_rope/head_tiles.py"
L2_HONEST = ROOT / "tests/honest/l2_norm/triton/rows_per_program.py"
L2_KNOWN = ROOT / "knowledge/kernels/triton/l2_norm/row_tiles.py"

# Renaming: § stands after every name that is to change

TRICKY = """\
SIZE§ = 3  # SIZE
def area§(SIZE): return SIZE * 2
areas§ = area§(SIZE=3) + area§(SIZE§)
async def f§(a: SIZE§ = SIZE§, *, SIZE=SIZE§) -> SIZE§: return SIZE
values§ = f§.__defaults__, (lambda SIZE=SIZE§: SIZE)(), (lambda: SIZE§)()
i§ = 2; j§ = 0
lists§ = [i for i in range(i§)], {(i§, j) for j in [i§] for k in (i§,)}, {i: i for i in 'ab'}
more§ = [*(i§ for j in 'a')]
eps§, tag§ = 1, 5
def mark§(tag): return lambda made: made
class A§:
    eps = 2
    size = [eps§ for _ in 'a']
    @mark§(tag=tag§)
    @mark§(tag§)
    def get(self): return eps§ + self.eps
class B§(A§, metaclass=type): pass
attributes§ = B§().get(), A§.eps, A§.size
strings§ = f'SIZE {SIZE§:>{SIZE§}}', 'SIZE', '''
SIZE'''
n§ = 0
def outer§():
    n = 5
    def inner():
        nonlocal n; n += 1; return n
    def bump():
        global n§, made§; n§ += 1; made§ = n§; return (lambda: n§)()
    return inner(), bump()
counted§ = outer§(), n§, made§
total§: int = 1; limit§: int
if (most§ := total§) > 0: any((last§ := j) > 1 for j in (1, 2))
def g§(): return [(own := j) for j in (total§,)], own
from math import tau as t§; import os.path as p§
def h§(): import math; return math.e
try: 1 / 0
except ZeroDivisionError as e§: kept§ = str(e§)
for i§, *rest§ in [(1, 2)]: pass
x§ = y§ = 1; del x§, j§
answer§ = (areas§, values§, lists§, more§, attributes§, strings§, counted§, most§, last§, g§(), t§, p§.sep,
           h§(), kept§, i§, rest§, y§)
"""
CRLF = "größe§ = 'ü'; b§ = größe§\r\ndef \\\r\n f§(): return 'é', b§\r\nanswer§ = f§()"  # and wide letters
RENAMED = [
    *((text.replace("§", ""), text.replace("§", "_2")) for text in (TRICKY, CRLF)),
    ("import math\nanswer = math.e", "import math as math_2\nanswer_2 = math_2.e"),
    ("from math import e\nanswer = e", "from math import e as e_2\nanswer_2 = e_2"),
    (  # an f-string over several lines is written anew
        "A = 1\nanswer = (f'''A {A}\n{[A for A in 'x']}''' f'{A}'\n    'A')  # kept",
        "A_2 = 1\nanswer_2 = (f\"A {A_2}\\n{[A for A in 'x']}{A_2}A\")  # kept",
    ),
]


def run(source: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, "candidate", "exec", dont_inherit=True), space)
    return space


@pytest.mark.parametrize(("text", "expected"), RENAMED)
def test_globals_are_renamed_where_they_are_meant(text: str, expected: str) -> None:
    new = {name: f"{name}_2" for name in renaming.names(text).bound}
    assert renaming.rename(text, new) == expected
    assert run(expected)["answer_2"] == run(text)["answer"]


# Merging: what serves what


def file(tag: str, *, before: str = "", after: str = "", body: str = "") -> str:
    """A kernel file whose forward says which file it is from."""
    return (
        f'"""Doc {tag}."""\n{before}\nimport torch\nfrom torch import nn\n\nTAG = "{tag}"  # the file\n'
        f"{after}\n\nclass Model(nn.Module):\n    def __init__(self, eps: float = 1e-6) -> None:\n"
        f"        super(Model, self).__init__()\n        {body or 'pass'}\n\n"
        f"    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> str:\n        return TAG\n"
    )


def case(operator: str, **dims: int) -> Case:
    return Case(operator=operator, id=str(dims), input=dims, phase="prefill", weight=1.0)


def candidate(source: str, operator: str = "rms_norm") -> Candidate:
    return Candidate(operator, "torch", source)


PROBLEM = load_problem("rms_norm")
GRID = Grid(PROBLEM.spec.buckets)


def merged(incumbent: str, specialist: str, buckets: Sequence[Bucket], operator: str = "rms_norm") -> str:
    problem = load_problem(operator)
    pair = candidate(incumbent, operator), candidate(specialist, operator)
    return merge(problem, Grid(problem.spec.buckets), *pair, buckets, []).source


def few(first: int) -> list[Bucket]:
    """Buckets by their place in the first dimension."""
    return [bucket for bucket in GRID.buckets if bucket.index[0] == first]


def served(source: str) -> dict[Bucket, str]:
    """What a file answers in each bucket, at its largest point and just above the bounds below it."""
    model = run(source)["Model"]()
    found: dict[Bucket, str] = {}
    for bucket in GRID.buckets:
        low = dict(zip(bucket.dims, (above + 1 for above in bucket.above), strict=True))
        places = [torch.empty(*point.values(), device="meta") for point in (low, bucket.corner)]
        (found[bucket],) = {model(x=x, weight=x) for x in places}
    return found


def test_the_specialist_serves_its_buckets_and_the_incumbent_the_others() -> None:
    made = merge(PROBLEM, GRID, candidate(file("a")), candidate(file("b")), few(0), [], "why")
    assert (made.parent, made.note) == (candidate(file("a")).id, "why")
    assert served(made.source) == {b: "b" if b.index[0] == 0 else "a" for b in GRID.buckets}
    second = file("b").replace("Model", "Model_2").replace("TAG", "TAG_2")
    expected = (
        file("a").replace("Model", "Model_1") + "\n\n# atrex: part 2\n" + second + "\n\n# atrex: parts "
    )
    assert made.source.startswith(expected)
    assert isinstance(run(made.source)["Model"](eps=0.5).part_2, torch.nn.Module)


def test_merges_of_merges_serve_what_they_should_and_do_not_pile_up() -> None:
    rng = random.Random(7)
    pool = {tag: (file(tag), dict.fromkeys(GRID.buckets, tag)) for tag in "abcd"}
    texts = list(pool.values())
    for _ in range(40):
        (source, now), (other, theirs) = rng.sample(texts, 2)
        buckets = rng.sample(GRID.buckets, rng.randint(1, 8))
        wanted = {bucket: (theirs if bucket in buckets else now)[bucket] for bucket in GRID.buckets}
        if len(set(wanted.values())) == 1:
            continue
        made = merged(source, other, buckets)
        assert served(made) == wanted
        assert len(re.findall(r"(?m)^# atrex: part \d", made)) <= len(pool)
        texts.append((made, wanted))
    assert len(texts) > 30


def test_the_same_specialist_is_held_once_and_one_without_buckets_goes() -> None:
    twice = merged(merged(file("a"), file("b"), few(0)), file("b"), few(1))
    assert twice.count("TAG_2 =") == twice.count("class Model_") - 1 == 1
    third = merged(twice, file("c"), few(0) + few(1))
    assert "TAG_2 =" not in third
    assert served(third) == {b: "a" if b.index[0] == 2 else "c" for b in GRID.buckets}


def test_an_edited_part_of_a_merged_file_comes_alone() -> None:
    """A model edits the incumbent, which is a merged file, and the edit is better in some buckets."""
    first = merged(merged(file("a"), file("b"), few(0)), file("c"), few(1))
    edited = first.replace('TAG_2 = "b"', 'TAG_2 = "new"')
    made = merged(first, edited, [few(0)[0], few(2)[0]])
    assert [made.count(f'= "{tag}"') for tag in ("a", "b", "c", "new")] == [1, 1, 1, 1]
    assert 'TAG_4 = "new"' in made
    assert [tag for b, tag in served(made).items() if b.index[0] == 0] == ["new", "b", "b"]


CHANGES = [(":  # token", " - 4:  # token"), ("return TAG_2", "return TAG + TAG_2"), ("Model_2", "Other")]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_merged_file_that_was_edited_across_its_parts_is_taken_whole(old: str, new: str) -> None:
    edited = merged(file("a"), file("b"), few(0)).replace(old, new)
    once = merged(file("c"), edited, few(0))
    both = merged(once, file("d"), few(1))
    model, outer = run(edited)["Model"](), run(both)["Model"]()
    *theirs, above, last = (torch.empty(tokens, 1) for tokens in (1, 60, 61, 64, 65, 2049))
    assert all(outer(at, at) == model(at, at) for at in theirs)
    assert (outer(above, above), outer(last, last)) == ("d", "c")
    again = merged(merged(edited, file("c"), few(1)), file("d"), few(2))
    assert both.count("# atrex: parts ") == again.count("# atrex: parts ") == 1


def test_new_names_are_free_ones() -> None:
    space = run(merged(file("a", after="TAG_3 = Model_1 = 7"), file("b"), few(0)))
    assert (space["TAG_3"], space["Model_1"], space["TAG_4"]) == (7, 7, "b")


def test_features_of_the_future_are_hoisted() -> None:
    later = file("b", before="from __future__ import annotations\n", after="def f(x: Missing): ...\n")
    made = merged(merged(file("a"), later, few(0)), later.replace("def f", "\ndef f"), few(1))
    assert made.startswith('"""Doc a."""\n\nfrom __future__ import annotations\nimport torch\n')
    assert made.count("__future__") == merged(file("c"), made, few(0)).count("__future__") == 1
    assert run(made)["f_2"].__annotations__ == run(made)["f_3"].__annotations__ == {"x": "Missing"}
    assert merged(later, file("a"), few(0)).startswith(later[: later.index("class")])


def test_imports_are_shared_only_where_they_mean_the_same() -> None:
    ours = file("a", after="from math import pi as log\ndef power(*a): return pow(*a)\n")
    theirs = file("b", after="from cmath import log\nfrom math import pow\nassert log(1) == 0 < pow(2, 2)\n")
    space = run(merged(ours, theirs, few(0)))
    assert (space["log"] > 3, space["power"](2, 5, 3), space["log_2"](1)) == (True, 2, 0)


@pytest.mark.parametrize(
    ("specialist", "why"),
    [
        (file("b", after="globals()['TAG'] = 1"), r"globals\(\)"),
        (file("b", after="run = Model.forward.__globals__"), "__globals__"),
        (file("b", after="from math import *"), r"imports \*"),
        (file("b", after="if __name__ == '__main__': pass"), "__name__"),
        (file("b", after="class A:\n    TAG = TAG"), "attribute of the class or the global"),
        (file("b", after="match 1:\n    case n: pass"), "bound by a pattern"),
        (file("b", after='S = """\n# atrex: dispatch\n"""'), "stands in a string"),
        (file("b", after="OP = 'space::norm'"), "takes space::norm from elsewhere"),
        (file("b", after="print(helper)"), "takes helper from elsewhere"),
        (file("b").replace("x: torch", "y: torch"), "forward does not take x"),
        (file("b").replace("eps: float", "epsilon: float"), "__init__ does not take eps"),
        (file("b").replace("def forward", "def __call__"), "more than its method"),
        (file("b", body="self.register_forward_hook(print)"), "more than its method"),
        (file("b").replace("class Model", "class Kernel"), "0 classes Model"),
        ("x = " + "(" * 3000 + ")" * 3000, "does not parse"),
    ],
)
def test_what_cannot_be_merged_safely_is_refused(specialist: str, why: str) -> None:
    incumbent = file("a", after="OP = 'space::norm'\nhelper = 1\n")
    with pytest.raises(Unmergeable, match=why):
        merged(incumbent, specialist, few(0))


def test_other_languages_names_of_torch_and_whole_replacements_are_refused() -> None:
    with pytest.raises(Unmergeable, match="a triton kernel of rms_norm"):
        merge(PROBLEM, GRID, real(SCALAR), Candidate("rms_norm", "triton", file("b")), few(0), [])
    with pytest.raises(Unmergeable, match="something else torch"):
        merged(file("a", after="torch = 1"), file("b"), few(0))
    with pytest.raises(Unmergeable, match="one part serves every bucket"):
        merged(file("a"), file("b"), GRID.buckets)


def test_which_operators_show_the_dimensions_of_their_buckets() -> None:
    problems = map(load_problem, operators())
    hidden = [f"{p.operator} {dim}" for p in problems for dim in p.spec.buckets if dim not in visible(p)]
    assert ", ".join(hidden) == (
        "attention_forward longest, mla_decode_attention longest, mrope num_query_heads, "
        "paged_attention_decode longest, paged_attention_decode heads_per_kv, "
        "unified_attention longest, unified_attention heads_per_kv"
    )


def attention(tag: str) -> str:
    wanted = ", ".join(load_problem("attention_forward").spec.inputs)
    return f"from torch import nn\nclass Model(nn.Module):\n    def forward(self, {wanted}): return '{tag}'\n"


def test_a_hidden_dimension_is_named_unless_it_makes_no_difference() -> None:
    grid = Grid((problem := load_problem("attention_forward")).spec.buckets)
    narrow = [bucket for bucket in grid.buckets if bucket.index[1] == 0]
    pair = candidate(attention("a"), problem.operator), candidate(attention("b"), problem.operator)
    with pytest.raises(Undispatchable, match="shows longest") as raised:
        merge(problem, grid, *pair, narrow[:1], [case(problem.operator, **narrow[1].corner)])
    assert raised.value.dim == "longest"
    rest = [None] * (len(problem.spec.inputs) - 1)
    for buckets in (narrow, narrow[:1]):  # without a case in the others they go along
        model = run(merge(problem, grid, *pair, buckets, []).source)["Model"]()
        assert [model(torch.empty(9, 2, size), *rest) for size in (72, 80)] == ["b", "a"]


def test_a_part_is_made_only_for_constructor_arguments_that_lead_to_it() -> None:
    grid, rng = Grid(load_problem("l2_norm").spec.buckets), random.Random(3)
    sizes = [200, 2000, 20000]

    def picky(tag: str, buckets: Sequence[Bucket]) -> str:
        legal = {sizes[bucket.index[1]] for bucket in buckets}
        return (
            "from torch import nn\nclass Model(nn.Module):\n    def __init__(self, hidden_size, eps=1e-6):\n"
            f"        super().__init__()\n        if hidden_size not in {legal}: raise ValueError\n"
            f"    def forward(self, x): return '{tag}'\n"
        )

    for _ in range(40):
        theirs = rng.sample(grid.buckets, rng.randint(1, 8))
        ours = [bucket for bucket in grid.buckets if bucket not in theirs]
        made = merged(picky("a", ours), picky("b", theirs), theirs, "l2_norm")
        for bucket in grid.buckets:
            model = run(made)["Model"](hidden_size=(size := sizes[bucket.index[1]]))
            x = torch.empty(bucket.corner["num_tokens"], size, device="meta")
            assert model(x=x) == ("b" if bucket in theirs else "a")


def test_constructor_and_forward_are_those_of_the_problem() -> None:
    one, grid = real(ROPE), Grid((problem := load_problem("fused_qkv_rope")).spec.buckets)
    text = merge(problem, grid, one, one, grid.buckets[:1], []).source
    assert "head_dim: int, rope_dim: int = 128, rope_base: float = 10000.0) -> None:\n" in text
    assert (
        "(self, qkv: torch.Tensor, positions: torch.Tensor, qkv_bias: torch.Tensor | None = None):\n" in text
    )
    assert "if qkv.shape[0] <= 64 and self.num_heads <= 32:  # total_tokens, num_heads\n" in text


def real(path: Path) -> Candidate:
    return Candidate(operator_of(path), detect_dsl(source := path.read_text()), source)


def test_the_dispatch_table_of_the_incumbent_is_edited_as_before() -> None:
    ours, theirs = real(VECTOR_ROWS), real(SCALAR)
    assert not dispatch.tunable(merge(PROBLEM, GRID, theirs, ours, few(0), []).source)
    marked = replace(theirs, source=f"#\u2028{dispatch.BEGIN}\n" + theirs.source)  # a line, but not to Python
    with pytest.raises(Unmergeable, match="could not be read"):
        merge(PROBLEM, GRID, ours, marked, few(0), [])
    made = merge(PROBLEM, GRID, ours, theirs, few(0), [])
    assert analyse_text(made.source, "merged", "rms_norm").verdict is Outcome.KERNEL
    table = dispatch.read(ours.source)
    assert dispatch.read(made.source) == table
    moved = compose(made, GRID, {few(2)[0]: {**table[0].config, "rows": 2}}, "tuned")
    again = merge(PROBLEM, GRID, moved, theirs, few(1), []).source
    assert dispatch.read(again) == dispatch.read(moved.source) != table
    assert again.count("\nclass Model_") == 2
    assert len(dispatch.read(dispatch.write(again, (Rule({}, table[0].config),)))) == 1


def answers(engine: Engine, one: Candidate, *dims: Mapping[str, int]) -> list[tuple[torch.Tensor, set[str]]]:
    """The output's bits for seeded inputs of each shape, and the names of the kernels that ran."""
    problem = load_problem(one.operator)
    specs = [InputSpec(shape=problem.shape_of({}, each), seed=5) for each in dims]
    with engine.session(one) as session:
        outcomes = session.run(*(Call(inputs=spec) for spec in specs))
        traces = [session.trace(spec) for spec in specs]
    names = [{launch.name for launch in trace if launch.origin == "own"} for trace in traces]
    return [(o.outputs["out"].view(torch.int16), own) for o, own in zip(outcomes, names, strict=True)]


ROWS: dict[str, tuple[int, ...]] = {"token_count": (64,)}
PAIRS = [
    *(
        pytest.param(k, SCALAR, ROWS, [(65, 70), (64, 70)], marks=pytest.mark.slow)
        for k in (AVX512, VECTOR_ROWS)
    ),
    (L2_HONEST, L2_KNOWN, {"num_tokens": (4,), "hidden_size": (64,)}, [(3, 65), (3, 64)]),
]


@pytest.mark.parametrize(("incumbent", "specialist", "cuts", "sizes"), PAIRS)
def test_a_merged_file_does_what_its_parts_do(
    engine: Engine, incumbent: Path, specialist: Path, cuts: dict[str, tuple[int, ...]], sizes: list[Any]
) -> None:
    ours, theirs, problem = real(incumbent), real(specialist), load_problem(operator_of(incumbent))
    theirs = replace(theirs, source=theirs.source.replace("rms_norm", "rms_norm_other"))
    made = merge(problem, Grid(cuts), ours, theirs, Grid(cuts).buckets[:1], [])
    above, below = (dict(zip(problem.spec.dims, size, strict=True)) for size in sizes)
    together = answers(engine, made, above, below)
    alone = answers(engine, ours, above) + answers(engine, theirs, below)
    for (bits, kernels), (expected, known) in zip(together, alone, strict=True):
        assert torch.equal(bits, expected)
        assert {name.removesuffix("_2") for name in kernels} == known
    assert not together[0][1] & together[1][1]


def test_a_merged_file_passes_gates(engine: Engine) -> None:
    made = merge(PROBLEM, GRID, real(AVX512), real(SCALAR), few(0), [])
    cases = [case("rms_norm", token_count=tokens, hidden_size=70) for tokens in (64, 65)]
    gates = ["interface", "authenticity", "accuracy"]
    with Verifier(engine) as verifier:
        verdicts = verifier.judge(made, cases, level="screen", gates=gates).verdicts
    assert [(one.gate, one.status) for one in verdicts] == [(gate, Status.PASS) for gate in gates]

"""How a model's answer is read, and what is said of one that cannot be."""

from __future__ import annotations

import pytest

from agent.prompts import answer
from agent.prompts.answer import Answer, MalformedAnswer

FENCE = "```"
BASE = "import torch\n\n\nclass Model:\n    size = 1\n    size2 = 1\n# end\n# end\n"
HEAD = "HYPOTHESIS: too small\nTECHNIQUE: Larger Tiles!\nGAIN: 1.5x\n"
TABLE = """\
# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [({}, {"warps": 4})]
# atrex: end
"""


def parse(text: str, base: str) -> Answer:
    return answer.parse(text, base, ("token_count", "hidden_size"))


def fenced(source: str, language: str = "python") -> str:
    return f"{HEAD}\n{FENCE}{language}\n{source}{FENCE}\n"


def edit(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n"


def test_a_whole_file() -> None:
    read = parse(fenced(BASE), "anything")
    assert (read.hypothesis, read.technique, read.gain) == ("too small", "larger tiles", 1.5)
    assert read.source == BASE
    assert read.tunables == {}


@pytest.mark.parametrize("wrap", ["{}", "```\n{}```\n", "```diff\n{}```\n"])
def test_edits_alone_or_in_a_fence(wrap: str) -> None:
    text = HEAD + wrap.format(edit("    size = 1\n", "    size = 2\n") + edit("import torch\n", ""))
    assert parse(text, BASE).source == BASE.replace("size = 1", "size = 2").replace("import torch\n", "")


def test_headings_are_read_through_markdown() -> None:
    text = fenced(BASE).replace("HYPOTHESIS:", "**Hypothesis:**").replace("GAIN: 1.5x", "- *gain*: about 2")
    assert parse(text, "").gain == 2.0
    assert parse(text, "").hypothesis == "too small"


def test_fences_of_other_languages_are_no_files() -> None:
    assert parse(fenced(BASE) + f"\n{FENCE}text\nnotes\n{FENCE}\n", "").source == BASE


def test_a_longer_fence_may_hold_shorter_ones() -> None:
    source = BASE + f'TEXT = """\n{FENCE}python\n{FENCE}\n"""\n'
    assert (
        parse(
            fenced(source).replace(f"{FENCE}python\nimport", f"`{FENCE}python\nimport")[:-4] + "````\n", ""
        ).source
        == source
    )


def test_values_to_try_belong_to_the_table() -> None:
    text = fenced(TABLE + BASE).replace("GAIN", 'TUNABLES: {"warps": [8, 2, 4, 2]}\nGAIN')
    assert parse(text, "").tunables == {"warps": (2, 4, 8)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "HYPOTHESIS"),
        (HEAD.replace("GAIN: 1.5x", "") + fenced(BASE)[len(HEAD) :], "GAIN"),
        (fenced(BASE).replace("1.5x", "0"), "no speed-up"),
        (HEAD, "neither"),
        (fenced(BASE)[:-4], "neither"),
        (fenced(BASE) + fenced(BASE), "2 fences"),
        (fenced(BASE) + edit("import torch\n", ""), "both"),
        (HEAD + edit("# end\n", ""), "edit 1 occurs 2 times"),
        (HEAD + edit("absent\n", ""), "edit 1 is not in"),
        (HEAD + edit("", "x\n"), "edit 1 is not in"),
        (HEAD + "<<<<<<< SEARCH\nimport torch\n=======\n", "no line >>>>>>> REPLACE"),
        (fenced("def (:\n"), r"not Python: .*\(line 1\)"),
        (fenced("x = '\0'\n"), "not Python"),
        (fenced("import torch\n"), "no class Model"),
        (fenced("(" * 10_000 + "\n"), "not Python"),
        (fenced(BASE).replace("GAIN", "TUNABLES: [8\nGAIN"), "JSON"),
        (fenced(BASE).replace("GAIN", 'TUNABLES: {"warps": [8]}\nGAIN'), "need a dispatch table"),
        (fenced(TABLE + BASE).replace("GAIN", 'TUNABLES: {"stages": [8]}\nGAIN'), "stages"),
        (fenced(TABLE + BASE).replace("GAIN", 'TUNABLES: {"warps": []}\nGAIN'), "warps"),
        *((fenced(TABLE + BASE).replace("GAIN", f'TUNABLES: {{"warps": [{value}, 4]}}\nGAIN'), "warps")
          for value in ("NaN", "Infinity", "1e999", '"\\ud800"', "1" + "0" * 100)),
        (fenced(TABLE.replace("({}", '({"n_rows": 64}, {"warps": 2}), ({}') + BASE).replace(
            "GAIN", 'TUNABLES: {"warps": [2, 4]}\nGAIN'), "bounds are of hidden_size, token_count"),
        (fenced(TABLE.replace('"warps": 4', '"warps": 1e999') + BASE).replace(
            "GAIN", 'TUNABLES: {"warps": [2, 4]}\nGAIN'), "warps"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(text: str, why: str) -> None:
    with pytest.raises(MalformedAnswer, match=why) as error:
        parse(text, BASE)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "HYPOTHESIS: " + " *" * 500_000,
        "\n" * 1_000_000,
        HEAD + "```x\n" * 200_000,
        HEAD + "<<<<<<< SEARCH\n" * 70_000,
        "* " * 500_000 + "HYPOTHESIS: x",
        HEAD + "`" * 1_000_000,
    ],
)
@pytest.mark.timeout(20)
def test_a_megabyte_of_anything_is_read_in_a_moment(text: str) -> None:
    with pytest.raises(MalformedAnswer):
        parse(text, BASE)


def test_the_hypothesis_of_what_cannot_be_read() -> None:
    assert answer.hypothesis_of("so:\nHypothesis: cache misses\n") == "cache misses"
    assert len(answer.hypothesis_of("HYPOTHESIS: " + "x" * 5000)) == answer.LONGEST_LINE

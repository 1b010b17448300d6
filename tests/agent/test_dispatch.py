"""The dispatch table: what is written is read back, and nothing else in the file moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import dispatch
from agent.dispatch import Rule
from atrex.errors import UsageError

HEAD, TAIL = '"""Prosa.\r\n"""\nimport torch\n\n', "\n\nclass Model: ...  # DISPATCH\n\f\u2028x = 1"
FILE = HEAD + "# atrex: dispatch\nDISPATCH = [({}, {})]\n# atrex: end\n" + TAIL

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
configs = st.dictionaries(st.text(), scalars, max_size=4)
bounds = st.dictionaries(st.sampled_from(["token_count", "hidden_size"]), st.integers(0, 1 << 40))
tables = st.tuples(st.lists(st.builds(Rule, bounds, configs), max_size=4), configs).map(
    lambda parts: (*parts[0], Rule({}, parts[1]))
)


@given(tables)
def test_a_table_survives_writing_and_reading(table: tuple[Rule, ...]) -> None:
    written = dispatch.write(FILE, table)
    assert dispatch.read(written) == table
    assert dispatch.write(written, table) == written
    assert written.startswith(HEAD)
    assert written.endswith(TAIL)


def test_what_was_read_may_be_changed_by_its_reader() -> None:
    """The next reader of the same file sees the file."""
    source = dispatch.write(
        f"{dispatch.BEGIN}\n{dispatch.END}\n", (Rule({"rows": 4}, {"a": 1}), Rule({}, {"a": 2}))
    )
    first = dispatch.read(source)
    first[0].bounds["rows"] = 9
    first[1].config["a"] = 7
    assert dispatch.read(source) == (Rule({"rows": 4}, {"a": 1}), Rule({}, {"a": 2}))


def test_a_written_table_is_the_literal_that_the_kernel_runs() -> None:
    table = (
        Rule({"token_count": 64}, {"variant": "row", "pdl": True, "x": 1.5}),
        Rule({}, {"variant": 'a"b'}),
    )
    space: dict[str, object] = {}
    exec(dispatch.write("# atrex: dispatch\nDISPATCH = [({}, {})]\n# atrex: end\n", table), space)
    assert space["DISPATCH"] == [(rule.bounds, rule.config) for rule in table]


def test_the_first_rule_whose_bounds_all_hold_is_used() -> None:
    table = (Rule({"t": 64, "h": 256}, {"v": 1}), Rule({"t": 64}, {"v": 2}), Rule({}, {"v": 3}))
    found = [dispatch.lookup(table, {"t": t, "h": h})["v"] for t, h in [(64, 256), (64, 257), (65, 1)]]
    assert found == [1, 2, 3]


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("x = 1\n", "one assignment"),
        ("DISPATCH = [({}, {})]\nimport os\n", "one assignment"),
        ("DISPATCH: list\n", "one assignment"),
        ("DISPATCH = (\n", "not Python"),
        ("DISPATCH = [({}, {'a': BLOCK})]\n", "literal"),
        ("DISPATCH = [({}, {[]: 1})]\n", "literal"),
        ("DISPATCH = []\n", "at least one"),
        ("DISPATCH = [({}, {}, {})]\n", r"DISPATCH\[0\] must be a tuple"),
        ("DISPATCH = [({'t': 1.5}, {}), ({}, {})]\n", r"DISPATCH\[0\]: bounds"),
        ("DISPATCH = [({'t': True}, {}), ({}, {})]\n", r"DISPATCH\[0\]: bounds"),
        ("DISPATCH = [({}, {'a': (1, 2)})]\n", r"DISPATCH\[0\]: a configuration"),
        ("DISPATCH = [({'t': 1}, {})]\n", "last rule"),
        ("# atrex: dispatch\nDISPATCH = [({}, {})]\n", "exactly once, found 2"),
    ],
)
def test_a_malformed_table_is_named(block: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=f"k.py: .*{complaint}"):
        dispatch.read(f"# atrex: dispatch\n{block}# atrex: end\n", "k.py")


def test_missing_or_swapped_markers_are_named() -> None:
    with pytest.raises(UsageError, match="found 0"):
        dispatch.read("DISPATCH = [({}, {})]\n")
    with pytest.raises(UsageError, match="swap"):
        dispatch.read("# atrex: end\nDISPATCH = [({}, {})]\n# atrex: dispatch\n")


def test_what_is_no_literal_or_no_table_is_not_written() -> None:
    with pytest.raises(ValueError, match="without bounds"):
        dispatch.write(FILE, (Rule({"t": 1}, {}),))
    with pytest.raises(ValueError, match="not a Python literal"):
        dispatch.write(FILE, (Rule({}, {"a": float("inf")}),))

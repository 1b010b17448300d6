"""Workload files: the published one, round trips, and errors a user can act on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atrex.errors import UsageError
from traces.workload import OperatorWorkload, Workload, WorkloadCase, load_workload, write_workload

GOOD = """\
name: mine
provenance: a test
operators:
  rms_norm:
    weight: 0.5
    phases: [prefill, decode]
    cases:
      - {shape: 0, init: {eps: 1.0e-6}, input: {token_count: 64, hidden_size: 8}}
      - {shape: 7, input: {token_count: 65, hidden_size: 8}, seen_in: vLLM, call_count: 3, production_us: {X: 1.5}}
"""  # noqa: E501 - a case is one line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    return path


class TestPublished:
    def test_rms_norm_has_all_its_production_shapes(self) -> None:
        cases = load_workload("atrex-bench", operators=["rms_norm"]).cases("rms_norm")
        assert [case.id for case in cases] == [f"rms_norm-{n:03d}" for n in range(56)]
        assert sum(case.weight for case in cases) == pytest.approx(0.027508)
        assert all(case.init == {"eps": 1e-6} and case.production_us["XPU-A"] > 0 for case in cases)

    def test_it_is_whole(self) -> None:
        workload = load_workload()
        assert len(workload.operators) == 30
        assert sum(len(entry.cases) for entry in workload.operators.values()) == 440
        assert sum(entry.weight for entry in workload.operators.values()) == pytest.approx(1.09478)

    def test_its_cases_share_an_operators_weight_equally(self) -> None:
        workload = load_workload()
        for name, entry in workload.operators.items():
            assert {case.weight for case in workload.cases(name)} == {entry.weight / len(entry.cases)}

    def test_every_case_has_a_phase_and_a_name_of_its_own(self) -> None:
        workload = load_workload()
        cases = [case for operator in workload.operators for case in workload.cases(operator)]
        assert len({case.id for case in cases}) == 440
        assert {case.phase for case in cases} == {"prefill", "decode"}

    def test_few_tokens_are_decode(self) -> None:
        for case in load_workload().cases("rms_norm"):
            assert case.phase == ("decode" if case.input["token_count"] <= 64 else "prefill")

    def test_what_production_knows_is_kept(self) -> None:
        case = load_workload().cases("rms_norm")[53]
        assert (case.call_count, case.seen_in, case.production_us) == (17609, "SGLang/vLLM", {"XPU-A": 46.49})


class TestLoad:
    def test_a_file_gives_its_cases(self, file: Path) -> None:
        first, second = load_workload(file).cases("rms_norm")
        assert (first.id, first.phase, first.weight, first.init) == (
            "rms_norm-000",
            "decode",
            0.25,
            {"eps": 1e-6},
        )
        assert (second.id, second.phase, second.call_count) == ("rms_norm-007", "prefill", 3)

    def test_a_directory_merges_its_files(self, file: Path) -> None:
        (file.parent / "other.yaml").write_text(
            GOOD.replace("rms_norm:", "l2_norm:").replace("a test", "another")
        )
        workload = load_workload(str(file.parent))
        assert set(workload.operators) == {"rms_norm", "l2_norm"}
        assert workload.provenance == "a test; another"
        assert set(load_workload(file.parent, operators=["l2_norm"]).operators) == {"l2_norm"}

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ("weight: 0.5", "weight: -1", "field operators.rms_norm.weight"),
            ("rms_norm:", "../rms_norm:", "../rms_norm"),
            ("weight: 0.5", "weight: .nan", "field operators.rms_norm.weight"),
            ("weight: 0.5", "weight: 2026-99-99", "not YAML"),
            ("name: mine", "nam: mine", "field name: Field required"),
            ("seen_in:", "sen_in:", "field operators.rms_norm.cases.1.sen_in: Extra inputs"),
            ("shape: 7", "shape: 0", "shape 0 appears twice"),
            ("shape: 7", "shape: seven", "field operators.rms_norm.cases.1.shape"),
            ("token_count: 65", "tokens: 65", "shape 7: no input counts its tokens: add phase"),
            ("token_count: 65", "token_count: {a: 1}", "field operators.rms_norm.cases.1.input.token_count"),
            ("shape: 7,", "shape: 7, phase: training,", "field operators.rms_norm.cases.1.phase"),
            ("[prefill, decode]", "[]", "field operators.rms_norm.phases"),
            ("call_count: 3", "call_count: 3, call_count: 4", "'call_count' is given twice"),
            ("production_us: {X: 1.5}", "production_us: {X: 0}", "production_us.X"),
            ("cases:", "cases: {", "not YAML"),
            (GOOD, "", "field (top level)"),
            (GOOD, "[" * 5000, "not YAML"),
        ],
    )
    def test_a_bad_file_is_named_with_field_and_remedy(
        self, old: str, new: str, complaint: str, file: Path
    ) -> None:
        assert old in GOOD
        file.write_text(GOOD.replace(old, new, 1))
        with pytest.raises(UsageError) as error:
            load_workload(file)
        message = str(error.value)
        assert message.startswith(f"{file}: ")
        assert complaint in message
        assert "rms_norm.yaml for the form" in message
        assert "\n" not in message

    def test_bytes_that_are_not_text_are_named(self, file: Path) -> None:
        file.write_bytes(b"name: \xff\xfe")
        with pytest.raises(UsageError, match=r"mine\.yaml: not YAML"):
            load_workload(file)

    def test_a_file_cannot_run_code(self, file: Path) -> None:
        file.write_text(GOOD.replace("a test", '!!python/object/apply:os.system ["true"]'))
        with pytest.raises(UsageError, match="not YAML"):
            load_workload(file)

    def test_names_that_do_not_exist(self, file: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="did you mean atrex-bench"):
            load_workload("atrex-bnech")
        with pytest.raises(UsageError, match="did you mean rms_norm"):
            load_workload(file, operators=["rmsnorm"])
        with pytest.raises(UsageError, match="did you mean rms_norm"):
            load_workload(file).cases("rms_nrom")
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match=r"holds no \*\.yaml"):
            load_workload(tmp_path / "empty")

    def test_files_of_one_directory_must_agree(self, file: Path) -> None:
        other = file.parent / "other.yaml"
        other.write_text(GOOD)
        with pytest.raises(UsageError, match="two files hold rms_norm"):
            load_workload(file.parent)
        other.write_text(GOOD.replace("name: mine", "name: yours").replace("rms_norm:", "l2_norm:"))
        with pytest.raises(UsageError, match="name: yours"):
            load_workload(file.parent)


class TestRows:
    @pytest.mark.parametrize(
        ("inputs", "rows"),
        [
            ({"token_count": 5, "hidden_size": 9}, 5),
            ({"num_tokens": 6}, 6),
            ({"total_tokens": 7}, 7),
            ({"rows": 8}, 8),
            ({"m": 9, "n": 1, "k": 2}, 9),
            ({"num_seqs": 4, "seq_lens": [[16, 3], [2, 1]]}, 50),
            ({"seq_lens": [16, 2]}, 18),
            ({"shape": [276, 2, 1152]}, 552),
            ({"num_seqs": 4}, None),
        ],
    )
    def test_tokens_or_rows_of_every_operators_inputs(
        self, inputs: dict[str, object], rows: int | None
    ) -> None:
        assert WorkloadCase.model_validate({"shape": 0, "input": inputs}).rows == rows

    def test_a_stated_phase_wins_over_the_count(self) -> None:
        case = {"shape": 0, "phase": "decode", "input": {"shape": [33, 16, 128]}}
        operator = OperatorWorkload.model_validate(
            {"weight": 1, "phases": ["prefill", "decode"], "cases": [case]}
        )
        assert operator.phase(operator.cases[0]) == "decode"

    def test_an_operator_of_one_phase_needs_no_count(self) -> None:
        case = {"shape": 0, "input": {"num_seqs": 4}}
        operator = OperatorWorkload.model_validate({"weight": 1, "phases": ["decode"], "cases": [case]})
        assert operator.phase(operator.cases[0]) == "decode"


class TestShares:
    def operator(self, *shares: float | None) -> OperatorWorkload:
        cases = [
            {"shape": n, "input": {"m": 1}} | ({} if share is None else {"share": share})
            for n, share in enumerate(shares)
        ]
        return OperatorWorkload.model_validate({"weight": 0.5, "phases": ["decode"], "cases": cases})

    def test_cases_weigh_by_their_shares(self) -> None:
        workload = Workload(name="w", provenance="p", operators={"op": self.operator(3, 1, 0.5, 0.5)})
        assert [case.weight for case in workload.cases("op")] == pytest.approx([0.3, 0.1, 0.05, 0.05])

    def test_equal_shares_are_none(self) -> None:
        assert self.operator(*[7.0] * 3).weights() == self.operator(None, None, None).weights()
        assert self.operator(None, None, None).weights() == (0.5 / 3,) * 3

    @given(st.lists(st.floats(min_value=1e-9, max_value=1e9), min_size=1, max_size=20))
    def test_they_add_up_to_the_operators_weight(self, shares: list[float]) -> None:
        assert sum(self.operator(*shares).weights()) == pytest.approx(0.5)

    @pytest.mark.parametrize(
        ("first", "second", "message"),
        [
            ("share: 2", "", "shape 7 has no share: give all cases of an operator one, or none"),
            ("", "share: 2", "shape 0 has no share: give all cases of an operator one, or none"),
            ("share: 0", "share: 1", "operators.rms_norm.cases.0.share"),
            ("share: -1", "share: 1", "operators.rms_norm.cases.0.share"),
            ("share: .nan", "share: 1", "operators.rms_norm.cases.0.share"),
            ("share: .inf", "share: 1", "operators.rms_norm.cases.0.share"),
            ("share: 1.0e+308", "share: 1.0e+308", "the shares add up to no number"),
        ],
    )
    def test_what_is_wrong_is_said(self, tmp_path: Path, first: str, second: str, message: str) -> None:
        path = tmp_path / "mine.yaml"
        text = GOOD.replace("shape: 0,", f"shape: 0, {first}{', ' if first else ''}")
        path.write_text(text.replace("shape: 7,", f"shape: 7, {second}{', ' if second else ''}"))
        with pytest.raises(UsageError, match=message) as caught:
            load_workload(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)
IDENTIFIER = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
POSITIVE = st.floats(min_value=1e-9, max_value=1e9)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
RUNS = st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 9)).map(list), min_size=1, max_size=4)
CASE = st.fixed_dictionaries(
    {"input": st.dictionaries(IDENTIFIER, SCALAR | RUNS | st.lists(st.integers(), max_size=4), max_size=4)},
    optional={
        "init": st.dictionaries(IDENTIFIER, SCALAR, max_size=3),
        "phase": st.just("decode"),
        "seen_in": TEXT,
        "call_count": st.integers(0, 10**9),
        "production_us": st.dictionaries(TEXT, POSITIVE, max_size=3),
    },
)
OPERATOR = st.builds(
    lambda weight, cases, shares: {
        "weight": weight,
        "phases": ["decode"],
        "cases": [
            {**case, "shape": shape} | ({"share": shares[shape]} if shares else {})
            for shape, case in enumerate(cases)
        ],
    },
    POSITIVE,
    st.lists(CASE, min_size=1, max_size=4),
    st.none() | st.lists(POSITIVE, min_size=4, max_size=4),
)


class TestWrite:
    @given(
        st.builds(
            dict,
            name=TEXT,
            provenance=TEXT,
            operators=st.dictionaries(IDENTIFIER, OPERATOR, min_size=1, max_size=3),
        )
    )
    def test_what_is_written_reads_back_equal(
        self, tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
    ) -> None:
        workload = Workload.model_validate(data)
        path = tmp_path_factory.mktemp("round") / "trip.yaml"
        write_workload(workload, path)
        assert load_workload(path) == workload

    def test_the_published_file_is_one_line_a_case(self, tmp_path: Path) -> None:
        path = tmp_path / "out.yaml"
        write_workload(load_workload(), path)
        assert sum(line.startswith("      - {shape: ") for line in path.read_text().splitlines()) == 440

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be written"):
            write_workload(load_workload(), tmp_path / "no" / "such.yaml")

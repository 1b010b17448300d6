"""`atrex fallbacks`: table, JSON, SARIF, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atrex.cli import main
from tests.fallback.test_static import HONEST, KERNEL

DEAD = KERNEL + "class Model(nn.Module):\n    def forward(self, x):\n        return F.silu(x)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "silu_and_mul"
    inner.mkdir()
    (inner / "honest.py").write_text(HONEST)
    (inner / "dead.py").write_text(DEAD)
    (tmp_path / "not_utf8.py").write_bytes(b"\xff\xfe\xff")
    return tmp_path


def out_of(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_json_has_a_row_a_file_and_a_summary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fallbacks", str(folder), "--static", "--json"]) == 0
    document = json.loads(out_of(capsys))
    rows = {row["file"]: row for row in document["files"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "not_utf8.py": "broken",
        "silu_and_mul/dead.py": "dead-kernel",
        "silu_and_mul/honest.py": "kernel",
    }
    finding = next(one for one in rows["silu_and_mul/dead.py"]["findings"] if one["kind"] == "compute")
    assert finding["operation"] == "torch.nn.functional.silu"
    assert DEAD.splitlines()[finding["line"] - 1][finding["column"] - 1 :].startswith("silu(")
    assert document["summary"]["files"] == 3
    assert document["summary"]["weight"]["kernel"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("limit", "code"), [("partial", 1), ("dead-kernel", 1), ("fallback", 0), ("broken", 0)]
)
def test_fail_on(folder: Path, limit: str, code: int) -> None:
    assert main(["fallbacks", str(folder / "silu_and_mul"), "--static", "--fail-on", limit]) == code


def test_sarif_points_at_the_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fallbacks", str(folder), "--static", "--sarif"]) == 0
    document = json.loads(out_of(capsys))
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    places = set()
    for result in run["results"]:
        assert result["ruleId"] in rules
        place = result["locations"][0]["physicalLocation"]
        places.add((place["artifactLocation"]["uri"], place["region"]["startLine"]))
    assert ("silu_and_mul/dead.py", len(DEAD.splitlines())) in places
    assert all(not uri.startswith("silu_and_mul/honest") for uri, _ in places)


def test_one_file_shows_all_of_its_findings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fallbacks", str(folder / "silu_and_mul/dead.py"), "--static"]) == 0
    text = out_of(capsys)
    assert "dead-kernel" in text
    assert "torch.nn.functional.silu" in text
    assert "not launched" in text


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fallbacks", str(tmp_path / "gone"), "--static"]) == 2
    assert main(["fallbacks", str(tmp_path), "--static"]) == 2
    assert main(["fallbacks", str(tmp_path), "--static", "--op", "no_such"]) == 2
    assert "no Python file" in capsys.readouterr().err

"""An audit's parts without its workers: what adapters find, rates, resuming, reports, wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atrex.cli import main
from atrex.errors import UsageError
from atrex.foreign import audit
from atrex.foreign.adapters import ADAPTERS, Format
from atrex.foreign.adapters.item import Item
from atrex.foreign.adapters.sources import kernel_of, source_of
from atrex.foreign.audit import Plan, digest
from atrex.foreign.rates import Row, State, share, summarise
from atrex.foreign.report import AuditReport, html, terminal
from atrex.foreign.verify import Settings
from atrex.ledger import Ledger
from atrex.records import Judgement, Status, Verdict, Witness

Write = Callable[[dict[str, str]], Path]


def test_kernelbench_is_found(kernelbench: Path) -> None:
    items = list(ADAPTERS["kernelbench"](kernelbench))
    assert [item.label for item in items] == [True, True, True, None]
    assert all(item.source and item.source.name == "19_scale" for item in items)


def test_kernelbench_without_its_task(write: Write) -> None:
    (item,) = ADAPTERS["kernelbench"](write({"level_1_problem_3_sample_0_kernel.py": "class ModelNew: pass"}))
    assert "no task" in item.unusable


def test_tritonbench_is_found(tritonbench: Path) -> None:
    items = {item.id: item for item in ADAPTERS["tritonbench-t"](tritonbench)}
    assert set(items) == {"first/shrink", "second/shrink"}
    assert "SystemExit" not in items["first/shrink"].kernel
    assert items["second/shrink"].label is True


def test_kernelbenchx_is_found(kernelbenchx: Path) -> None:
    items = list(ADAPTERS["kernelbenchx"](kernelbenchx))
    assert [item.label for item in items] == [True, False, None]
    assert items[0].kernel.lstrip().startswith("import torch")
    assert "no task" in items[2].unusable


def test_gpuemu_is_found(gpuemu: Path) -> None:
    items = list(ADAPTERS["gpuemu"](gpuemu))
    assert [item.label for item in items] == [True, False]
    assert items[0].source is not None
    assert items[0].source.arrays[0] == {"x": (1, 8)}
    assert items[0].source.arrays[-1] == {"x": (3, 33)}
    again = source_of(gpuemu / "softmax_triton" / "ref_fp64.py")
    assert again == items[0].source


def test_gpuemu_with_a_broken_meta(gpuemu: Path) -> None:
    (gpuemu / "softmax_triton" / "meta.json").write_text('{"name": "a"}')
    first = next(iter(ADAPTERS["gpuemu"](gpuemu)))
    assert "op_schema" in first.unusable


def test_atrex_bench_is_found(write: Write) -> None:
    model = "class Model: pass"
    files = {"rmsnorm/a.py": model, "silu_and_mul_v2.py": model, "other.py": model, "no.py": ""}
    items = {item.id: item for item in ADAPTERS["atrex-bench"](write(files))}
    operators = {name: item.operator for name, item in items.items()}
    assert operators == {"rmsnorm/a": "rms_norm", "silu_and_mul_v2": "silu_and_mul", "other": ""}
    assert items["other"].unusable


@pytest.mark.parametrize("format", ["kernelbench", "tritonbench-t", "kernelbenchx", "atrex-bench"])
def test_a_file_that_cannot_be_read_has_a_row(format: Format, write: Write) -> None:
    directory = write({"sub/rms_norm.py": "class ModelNew: pass"})
    (directory / "sub" / "rms_norm.py").write_bytes(b"class ModelNew: pass  # \xff\xfe")
    (item,) = ADAPTERS[format](directory)
    assert item.id == "sub/rms_norm"
    assert "not UTF-8 text" in item.unusable


def test_a_kernel_is_read_without_its_test(tritonbench: Path) -> None:
    assert "SystemExit" not in kernel_of(tritonbench / "first" / "shrink.py")


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(1, 2, 0.0945, 0.9055), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (73, 144, 0.4262, 0.5874)],
)
def test_intervals_are_wilsons(k: int, n: int, low: float, high: float) -> None:
    got = share(k, n)
    assert (got.low, got.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_a_share_of_nothing() -> None:
    assert (share(0, 0).low, share(0, 0).high, share(0, 0).value) == (0.0, 1.0, 0.0)


def row(name: str, state: State, label: bool | None = None, gate: str = "", free: bool = True) -> Row:
    verdicts: tuple[Verdict, ...] = ()
    if gate:
        witness = Witness(case="n=3", seed=1, got="<b>", expected="2", command=f"atrex verify {name}")
        verdicts = (
            Verdict(
                gate=gate, status=Status.FAIL, tolerance_free=free, reason="it is <wrong>", witness=witness
            ),
        )
    judgement = Judgement(
        candidate="c",
        operator="o",
        device="cpu",
        level="screen",
        seed=1,
        required=("interface",),
        verdicts=verdicts,
    )
    judgements = (judgement,) if state != "unusable" else ()
    reason = f"{gate}: it is <wrong>" if gate else ""
    return Row(id=name, digest=name, state=state, reason=reason, label=label, judgements=judgements)


ROWS = (
    row("a", "accepted", True),
    row("b", "rejected", True, "bounds"),
    row("c", "rejected", False, "accuracy", free=False),
    row("d", "rejected", None, "authenticity"),
    row("e", "accepted", False),
    row("f", "unusable", True),
    row("g", "undecided"),
)


def test_rates_count_what_was_judged() -> None:
    summary = summarise(ROWS)
    assert (summary.tolerance_free.k, summary.tolerance_free.n) == (2, 6)
    assert summary.tolerance_free_without_authenticity.k == 1
    assert summary.any_gate.k == 3
    assert summary.confusion.counts["right"] == {"accepted": 1, "rejected": 1, "unusable": 1}
    assert summary.disagreements == ("b", "e")


def report() -> AuditReport:
    return AuditReport(
        format="gpuemu",
        directory="d",
        device="cpu",
        level="screen",
        run="r",
        summary=summarise(ROWS),
        rows=ROWS,
    )


def test_the_page_shows_witnesses_and_escapes_what_kernels_say() -> None:
    text = html(report())
    assert "atrex verify b" in text
    assert "<wrong>" not in text
    assert "it is &lt;wrong&gt;" in text
    assert AuditReport.model_validate_json(report().model_dump_json()) == report()


def test_the_terminal_shows_rates_and_disagreements() -> None:
    from rich.console import Console

    console = Console(width=140, record=True)
    console.print(terminal(report()))
    text = console.export_text()
    assert "33.3 %" in text
    assert "label and gates disagree" in text
    assert "atrex verify b" in text


def items(count: int) -> list[Item]:
    return [Item(id=f"k{i}", path=Path(f"k{i}.py"), kernel=f"# {i}") for i in range(count)]


def test_a_ledger_row_is_not_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = list[str]()

    def judge(item: Item, plan: Plan, engine: Any) -> Row:
        judged.append(item.id)
        return Row(id=item.id, digest=digest(item), state="accepted")

    monkeypatch.setattr(audit, "judge_item", judge)
    plan = Plan(items=items(5), settings=Settings(), jobs=2, cases=lambda operator: ())
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for item in plan.items[:2]:
            ledger.append(audit.KERNEL, judge(item, plan, None))
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"seq": 9, "half a li')  # as kill -9 leaves it
    judged.clear()
    with Ledger(tmp_path / "ledger.jsonl") as ledger, pytest.warns(UserWarning, match="damaged"):
        rows = audit.run(plan, None, ledger, lambda row, done, total: None)  # type: ignore[arg-type]
    assert sorted(judged) == ["k2", "k3", "k4"]
    assert [row.id for row in rows] == ["k0", "k1", "k2", "k3", "k4"]
    changed = [Item(id="k0", path=Path("k0.py"), kernel="# other")]
    assert digest(changed[0]) != digest(plan.items[0])


def test_what_goes_wrong_in_the_harness_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a defect\nof ours")

    monkeypatch.setattr(audit, "_judge", fail)
    item = Item(id="k", path=Path("k.py"), kernel="")
    plan = Plan(items=[item], settings=Settings(), jobs=1, cases=lambda operator: ())

    class Cpu:
        device = "cpu"

    got = audit.judge_item(item, plan, Cpu())  # type: ignore[arg-type]
    assert (got.state, got.reason) == ("unusable", "harness: RuntimeError: a defect of ours")
    assert summarise([got]).harness == ("k",)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "K"], "either --op"),
        (["verify", "K", "--op", "rms_norm", "--reference", "R"], "either --op"),
        (["verify", "K", "--op", "rms_norm", "--contract", "C"], "belong to --reference"),
        (["verify", "K", "--reference", "absent.py"], "absent.py: cannot be read"),
        (["verify", "absent.py", "--reference", "R"], "absent.py: cannot be read"),
        (["verify", "K", "--reference", "R", "--contract", "C"], "C: "),
        (["verify", "K", "--reference", "R", "--gate", "no"], "unknown gate"),
        (["verify", "K", "--reference", "R", "--case", "1"], "--case"),
        (["audit", "absent", "--format", "gpuemu"], "not a directory"),
        (["audit", "D", "--format", "gpuemu"], "no kernel in the format"),
        (["audit", "D", "--format", "nonsense"], "nonsense"),
        (["audit", "L", "--format", "kernelbench"], "labels.json"),
        (["audit", "J", "--format", "kernelbenchx"], "not JSON"),
        (["audit", "B", "--format", "kernelbench", "--resume", "none"], "no run"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "DLJB":
        Path(name).mkdir()
    Path("K").write_text("class Model: pass")
    Path("R").write_text("x = 1")
    Path("C").write_text("problem: [")
    Path("L/labels.json").write_text(json.dumps({"a": "yes"}))
    Path("J/p.jsonl").write_text("{")
    Path("B/k.py").write_text("class ModelNew: pass")
    assert main([*arguments, *(["--runs", "runs"] if arguments[0] == "audit" else [])]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


def test_a_row_that_is_none_is_said(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append(audit.KERNEL, {"id": "a"})
    with pytest.raises(UsageError, match="no audit row"):
        audit.finished(tmp_path / "ledger.jsonl")

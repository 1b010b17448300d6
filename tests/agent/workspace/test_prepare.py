"""What the prepared directory holds, and what it does not."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.lab import Knowledge, Passage, ReferenceKernel
from agent.workspace.code import skeleton
from agent.workspace.harvest import read_kernel, used_bytes
from agent.workspace.prepare import Workspace, prepare
from agent.workspace.split import split
from atrex.errors import UsageError
from atrex.problem import Draw, load_problem, operators
from traces.workload import load_workload

FEW = ("rms_norm", "fused_qkv_rope", "unified_attention", "moe_align_block_size", "layer_norm")
HONEST = Path(__file__).parents[2] / "honest" / "rms_norm" / "cpp" / "scalar.py"


def prepared(operator: str, place: Path) -> Workspace:
    visible, hidden = split(load_workload("atrex-bench").cases(operator), 1, 0.25)
    return prepare(place / operator, load_problem(operator), visible, "cpu", "cpp", hidden=hidden)


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"reference_of_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def check_reference(operator: str, place: Path) -> None:
    """The written reference says what the judge's own does, and holds nothing that is the judge's alone."""
    workspace, problem = prepared(operator, place), load_problem(operator)
    text = (workspace.directory / "reference.py").read_text()
    defined = {n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)}
    assert not defined & {"oracle", "make_inputs", "check", *(p for g in problem.probes.values() for p in g)}
    assert "PROBES" not in text
    shape = problem.shape(problem.small(workspace.visible[0]))
    generator = torch.Generator("cpu")
    generator.manual_seed(3)
    inputs = problem.source("production")(Draw(shape, generator, torch.device("cpu")))
    expected = problem.reference(shape, inputs)
    found = module(workspace.directory / "reference.py").Model(**shape.init)(**inputs)
    if not isinstance(found, dict):
        found = dict(zip(expected, (found,) if isinstance(found, torch.Tensor) else found, strict=True))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("operator", FEW)
def test_the_reference(operator: str, tmp_path: Path) -> None:
    check_reference(operator, tmp_path)


@pytest.mark.parametrize("operator", FEW)
def test_cases_and_words(operator: str, tmp_path: Path) -> None:
    check_files(operator, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("operator", sorted(set(operators()) - set(FEW)))
def test_every_other_operator(operator: str, tmp_path: Path) -> None:
    check_reference(operator, tmp_path / "one")
    check_files(operator, tmp_path / "two")


def check_files(operator: str, tmp_path: Path) -> None:
    """The cases come back as they were, the task names every part, and nothing hidden is written."""
    workspace, spec = prepared(operator, tmp_path), load_problem(operator).spec
    back = load_workload(workspace.directory / "cases.yaml").cases(operator)
    assert [case.model_copy(update={"weight": 0}) for case in back] == [
        case.model_copy(update={"weight": 0}) for case in workspace.visible
    ]
    assert sum(case.weight for case in back) == pytest.approx(sum(case.weight for case in workspace.visible))
    files = {path.name: path.read_text() for path in workspace.directory.iterdir()}
    assert set(files) == {"TASK.md", "reference.py", "kernel.py", "cases.yaml", "verify", "measure"}
    for case in workspace.hidden:
        assert not [name for name, text in files.items() if case.id in text]
    for name in (*spec.inputs, *spec.outputs, *spec.init, *spec.dims):
        assert f"`{name}`" in files["TASK.md"]


@pytest.mark.parametrize("dsl", ["cpp", "triton"])
@pytest.mark.parametrize("operator", operators())
def test_the_skeleton_has_the_right_form(operator: str, dsl: Any) -> None:
    spec = load_problem(operator).spec
    tree = ast.parse(skeleton(spec, dsl))
    (model,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model")
    init, forward = (node for node in model.body if isinstance(node, ast.FunctionDef))
    assert [argument.arg for argument in init.args.args] == ["self", *spec.init]
    defaults = [ast.literal_eval(default) for default in init.args.defaults]
    assert defaults == [argument.default for argument in spec.init.values()]
    assert {argument.arg for argument in forward.args.args} == {"self", *spec.inputs}
    assert len(forward.args.defaults) == sum(tensor.optional for tensor in spec.inputs.values())


def test_a_language_without_a_skeleton() -> None:
    with pytest.raises(UsageError, match="choose triton or cpp"):
        skeleton(load_problem("rms_norm").spec, "cuda")


def test_knowledge_becomes_files(tmp_path: Path) -> None:
    problem, cases = load_problem("rms_norm"), load_workload("atrex-bench").cases("rms_norm")[:2]
    known = Knowledge(
        kernels=(ReferenceKernel(name="cpp/rms_norm/rows.py", dsl="cpp", source="x = 1\n"),),
        passages=(Passage(name="../../etc/passwd", text="harmless"), Passage(name="gpu/notes.md", text="n")),
    )
    workspace = prepare(tmp_path / "w", problem, cases, "cpu", "cpp", knowledge=known)
    notes = {path.name: path.read_text() for path in (workspace.directory / "knowledge").iterdir()}
    assert notes == {"cpp-rms_norm-rows.py": "x = 1\n", "etc-passwd.md": "harmless", "gpu-notes.md": "n"}


def test_a_directory_that_is_not_empty(tmp_path: Path) -> None:
    problem, cases = load_problem("rms_norm"), load_workload("atrex-bench").cases("rms_norm")[:1]
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(UsageError, match="not empty"):
        prepare(tmp_path, problem, cases, "cpu", "cpp")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_case_on_both_sides(tmp_path: Path) -> None:
    problem, cases = load_problem("rms_norm"), load_workload("atrex-bench").cases("rms_norm")[:2]
    with pytest.raises(UsageError, match="both visible and hidden"):
        prepare(tmp_path / "w", problem, cases, "cpu", "cpp", hidden=cases[1:])


def test_kernels_that_are_none(workspace: Workspace, tmp_path: Path) -> None:
    path, secret = workspace.kernel, tmp_path / "secret"
    secret.write_text("outside")
    for spoil, words in (
        (lambda: path.symlink_to(secret), "a link, not a plain file"),
        (lambda: os.mkfifo(path), "not a plain file"),
        (path.mkdir, "not a plain file"),
        (lambda: path.write_bytes(b"\xff\xfe"), "kernel.py: not UTF-8"),
        (lambda: path.write_bytes(b"#" * ((4 << 20) + 1)), "kernel.py: longer than"),
        (lambda: None, "cannot be read"),
    ):
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        spoil()
        with pytest.raises(UsageError, match=words) as raised:
            read_kernel(path, "rms_norm")
        assert "\n" not in str(raised.value)
        assert "/proc" not in str(raised.value)


def test_used_bytes(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert 100_000 <= used_bytes(tmp_path, 1 << 30) <= 130_000
    assert used_bytes(tmp_path / "missing", 1 << 30) == 0


@pytest.mark.slow  # real timings of two files
def test_measure_times_the_kernel_and_the_reference(workspace: Workspace) -> None:
    workspace.kernel.write_text(HONEST.read_text())
    for file in ("kernel.py", "reference.py"):
        command = [workspace.directory / "measure", file, "--quick", "--json"]
        for _ in range(3):  # on a busy machine an honest time can look late, and is refused
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stderr
        assert '"case": "rms_norm-000"' in done.stdout

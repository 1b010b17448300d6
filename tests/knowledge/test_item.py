"""Front matter: what is accepted, and that every mistake is named with its file, field and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from atrex.errors import UsageError
from knowledge.item import ROOT, Item, load_item, load_items

NOTE = {
    "title": "A title",
    "technique": "[one-thing, another]",
    "dsl": "triton",
    "architecture": "[sm_90]",
    "operator": "[rms_norm, layer_norm]",
    "symptoms": "[memory-bound]",
    "source": "own work",
    "licence": "Apache-2.0",
}
KERNEL = {
    **NOTE,
    "operator": "rms_norm",
    "tunables": "{num_warps: [1, 2, 4], cache: [stream, plain], fast: [true]}",
}


def header(fields: dict[str, str]) -> str:
    return "---\n" + "".join(f"{name}: {value}\n" for name, value in fields.items()) + "---\n"


def write_note(root: Path, fields: dict[str, str], text: str = "Some text.\n") -> Path:
    path = root / "docs" / "gpu" / "note.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header(fields) + text)
    return path


def write_kernel(root: Path, content: str, folder: str = "triton/rms_norm") -> Path:
    path = root / "kernels" / folder / "row.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def module(fields: dict[str, str], code: str = "") -> str:
    return f'"""{header(fields)}Prose about it.\n"""\n{code}'


def refusal(path: Path, root: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_item(path, root)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_a_note_is_read(tmp_path: Path) -> None:
    item = load_item(write_note(tmp_path, NOTE), tmp_path)
    assert (item.id, item.kind, item.text) == ("docs/gpu/note", "note", "Some text.")
    assert item.technique == ("one-thing", "another")
    assert item.dsl == ("triton",)  # a plain value is a list of one
    assert item.operator == ("rms_norm", "layer_norm")


def test_a_kernel_is_read_with_its_tunables_and_is_never_run(tmp_path: Path) -> None:
    path = write_kernel(tmp_path, module(KERNEL, "raise SystemExit('imported')\n"))
    (item,) = load_items(tmp_path)
    assert (item.id, item.kind, item.text) == ("kernels/triton/rms_norm/row", "kernel", "Prose about it.")
    assert item.tunables == {"num_warps": (1, 2, 4), "cache": ("stream", "plain"), "fast": (True,)}
    assert item.tunables["fast"][0] is True  # not turned into 1
    assert item.source_code() == path.read_text()


@pytest.mark.parametrize(
    "name", ["title", "technique", "dsl", "architecture", "operator", "source", "licence"]
)
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    fields = {field: value for field, value in NOTE.items() if field != name}
    assert f"{name}: Field required; add it" in refusal(write_note(tmp_path, fields), tmp_path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"id": "docs/other"}, "id"),  # derived from the path: an author cannot set it
        ({"kind": "kernel"}, "kind"),
        ({"dsl": "tritn"}, "dsl"),
        ({"architecture": "hopper"}, "architecture"),
        ({"symptoms": "[Memory Bound]"}, "symptoms"),
        ({"technique": "[]"}, "technique"),
        ({"tunables": "{num_warps: [1]}"}, "tunables"),  # a note has none
        ({"effect": "[{hardware: H200, case: c, baseline: eager, before_us: 2, after_us: 1}]"}, "command"),
        (
            {"effect": "[{hardware: H200, case: c, baseline: eager, before_us: 2, after_us: 0, command: x}]"},
            "after_us",
        ),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, str], field: str) -> None:
    message = refusal(write_note(tmp_path, {**NOTE, **change}), tmp_path)
    assert field in message
    unknown = field in ("colour", "id", "kind")
    assert ("remove it, or use one of title, technique" in message) == unknown
    assert ("; add it" in message) == (field == "command")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("Just text.\n", "no front matter"),
        ("", "no front matter"),
        ("---\ntitle: x\n", "does not end"),
        ("---\ntitle: [x\n---\n", "not valid YAML"),
        ("---\n- x\n---\n", "not a mapping"),
        ("---\ntitle: x\ntitle: y\n---\n", "'title' is given twice"),
    ],
)
def test_front_matter_that_is_none(tmp_path: Path, content: str, reason: str) -> None:
    path = write_note(tmp_path, NOTE)
    path.write_text(content)
    assert reason in refusal(path, tmp_path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = write_note(tmp_path, NOTE)
    path.write_bytes(b"---\n\xff\xfe\n---\n")
    assert "UTF-8" in refusal(path, tmp_path)


def test_a_kernel_that_is_not_python(tmp_path: Path) -> None:
    assert "not valid Python" in refusal(write_kernel(tmp_path, "def (:\n"), tmp_path)


@pytest.mark.parametrize(
    ("change", "folder"),
    [
        ({"dsl": "cpp"}, "triton/rms_norm"),
        ({"operator": "layer_norm"}, "triton/rms_norm"),
        ({}, "cpp/rms_norm"),
        ({"dsl": "[triton, gluon]"}, "triton/rms_norm"),
        ({"dsl": "any"}, "triton/rms_norm"),
    ],
)
def test_a_kernel_that_contradicts_its_folder(tmp_path: Path, change: dict[str, str], folder: str) -> None:
    refusal(write_kernel(tmp_path, module({**KERNEL, **change}), folder), tmp_path)


def test_gain_is_derived(tmp_path: Path) -> None:
    effect = "[{hardware: H200, case: c, baseline: eager, before_us: 3, after_us: 2, command: atrex compare}]"
    item = load_item(write_note(tmp_path, {**NOTE, "effect": effect}), tmp_path)
    assert item.effect[0].gain == 1.5


def test_filters(tmp_path: Path) -> None:
    item = load_item(write_note(tmp_path, NOTE), tmp_path)
    assert item.applies()
    assert item.applies("layer_norm", "triton", "sm_90")
    assert not item.applies(operator="softmax")
    assert not item.applies(architecture="x86-64")
    anywhere = load_item(write_note(tmp_path, {**NOTE, "architecture": "any"}), tmp_path)
    assert anywhere.applies(architecture="x86-64")


def test_every_item_of_this_repository_is_well_formed() -> None:
    items = load_items(ROOT)
    assert len({item.id for item in items}) == len(items)
    assert sum(item.kind == "note" for item in items) >= 12
    assert all(_is_short(item) for item in items if item.kind == "note")


def _is_short(item: Item) -> bool:
    """A note is read whole by a model: it has to earn its place."""
    return 80 <= len(item.text.split()) <= 260

"""One item of knowledge: a markdown note, or a runnable reference kernel, with YAML front matter.

A note starts with front matter between two lines `---`; a kernel carries the same at the start of
its module docstring. A kernel is parsed, never imported: indexing must not run anybody's code.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from atrex.errors import UsageError
from atrex.records import Record

ROOT = Path(__file__).parent

Kind = Literal["note", "kernel"]
Tunable = bool | int | float | str
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Tag = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Language = Literal["torch", "triton", "gluon", "cuda", "cpp", "any"]
Architecture = Annotated[
    str, StringConstraints(pattern=r"^(any|sm_[0-9]+[a-z]?|gfx[0-9a-f]+|x86-64|aarch64)$")
]
Operator = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


def _listed(value: object) -> object:
    """Let a list of one be written as a plain value."""
    return value if isinstance(value, list | tuple) else (value,)


AsList = BeforeValidator(_listed)


class Effect(Record):
    """A gain that a named command measured on a named machine; times in microseconds."""

    hardware: Text
    case: Text
    baseline: Text
    """What `before_us` timed, for instance `eager` or another item's id."""
    before_us: Annotated[float, Field(gt=0)]
    after_us: Annotated[float, Field(gt=0)]
    efficiency: Annotated[float, Field(ge=0)] | None = None
    """Speed of light / `after_us`, where the bound is known."""
    command: Text
    """The command that shows these numbers again."""

    @property
    def gain(self) -> float:
        """before / after: above 1 is faster."""
        return self.before_us / self.after_us


class FrontMatter(Record):
    """The fields that the author of a note or kernel writes."""

    title: Text
    technique: Annotated[tuple[Tag, ...], AsList, Field(min_length=1)]
    dsl: Annotated[tuple[Language, ...], AsList, Field(min_length=1)]
    architecture: Annotated[tuple[Architecture, ...], AsList, Field(min_length=1)]
    operator: Annotated[tuple[Operator, ...], AsList, Field(min_length=1)]
    symptoms: Annotated[tuple[Tag, ...], AsList] = ()
    preconditions: str = ""
    tunables: dict[Operator, Annotated[tuple[Tunable, ...], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    """Kernels only: every tunable with its legal values, which a search moves through."""
    effect: tuple[Effect, ...] = ()
    source: Text
    licence: Text


class Item(FrontMatter):
    """A note or a kernel, as the index holds it."""

    id: str
    """Path below `knowledge/` without its suffix."""
    kind: Kind
    text: Text
    """The note's markdown, or the prose of the kernel's docstring."""
    path: Path

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "note":
            if self.tunables:
                raise ValueError("a note has no tunables: only a kernel has")
            return self
        language, operator = Path(self.id).parts[-3:-1]
        if len(self.dsl) != 1 or self.dsl == ("any",):
            raise ValueError("a kernel is written in exactly one dsl")
        if operator not in self.operator or language not in self.dsl:
            raise ValueError(
                f"the kernel lies in {language}/{operator}/ but says dsl {self.dsl[0]}, "
                f"operator {', '.join(self.operator)}"
            )
        return self

    def applies(
        self, operator: str | None = None, dsl: str | None = None, architecture: str | None = None
    ) -> bool:
        """True iff the item holds for each constraint that is given; `any` holds for all."""
        constraints = ((self.operator, operator), (self.dsl, dsl), (self.architecture, architecture))
        return all(asked is None or asked in said or "any" in said for said, asked in constraints)

    def source_code(self) -> str:
        """The kernel's file (a note's file, for a note)."""
        return self.path.read_text(encoding="utf-8")


def load_items(root: Path = ROOT) -> tuple[Item, ...]:
    """Read `docs/**.md` and `kernels/<dsl>/<operator>/*.py` below `root`, ordered by id.

    Raises UsageError, naming file, field and remedy, at the first malformed file.
    """
    notes = (load_item(path, root) for path in root.glob("docs/**/*.md"))
    kernels = (load_item(p, root) for p in root.glob("kernels/*/*/*.py") if p.name != "__init__.py")
    return tuple(sorted((*notes, *kernels), key=lambda item: item.id))


def load_item(path: Path, root: Path = ROOT) -> Item:
    """Read one note (`.md`) or kernel (`.py`); raises UsageError as `load_items`."""
    kind: Kind = "kernel" if path.suffix == ".py" else "note"
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    header, text = _split(path, _docstring(path, content) if kind == "kernel" else content)
    identity = path.relative_to(root).with_suffix("").as_posix()
    fields = _fields(path, header)
    try:
        FrontMatter.model_validate(fields)  # alone first: an author cannot set id, kind, text or path
        return Item(id=identity, kind=kind, text=text, path=path, **fields)
    except ValidationError as error:
        raise UsageError(_explain(path, error)) from error


def _docstring(path: Path, content: str) -> str:
    try:
        return ast.get_docstring(ast.parse(content, filename=str(path)), clean=False) or ""
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path}: is not valid Python ({error}); correct the file") from error


def _split(path: Path, content: str) -> tuple[str, str]:
    """Cut the front matter from the text below it."""
    lines = content.splitlines()
    if not lines or lines[0].strip() != "---":
        where = "the module docstring" if path.suffix == ".py" else "the file"
        raise UsageError(f"{path}: no front matter; start {where} with a line '---'")
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :]).strip()
    raise UsageError(f"{path}: the front matter does not end; close it with a line '---'")


def _fields(path: Path, header: str) -> dict[str, Any]:
    try:
        fields = yaml.load(header, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        summary = " ".join(str(error).split())
        raise UsageError(f"{path}: the front matter is not valid YAML ({summary}); correct it") from error
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise UsageError(f"{path}: the front matter is not a mapping; write lines 'field: value'")
    return fields


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, which YAML otherwise drops silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if repeated := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise yaml.constructor.ConstructorError(None, None, f"field '{repeated[0]}' is given twice")
        return super().construct_mapping(node, deep)


def _explain(path: Path, error: ValidationError) -> str:
    """One line: file, field, what is wrong, remedy."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "front matter"
    if first["type"] == "extra_forbidden":
        remedy = f"remove it, or use one of {', '.join(FrontMatter.model_fields)}"
    elif first["type"] == "missing":
        remedy = "add it"
    else:
        remedy = f"correct it (got {str(first['input'])[:60]!r})" if first["loc"] else "correct it"
    return f"{path}: {field}: {first['msg']}; {remedy}"

"""A C++ candidate, seen without running it: its source read statically, its loops as GCC reports them.

GCC's `-fopt-info-vec` says of every loop whether it was vectorised (GCC manual, "Developer Options"). The
source is hostile: the compiler gets it on standard input, with limits on time and memory, in a directory of
its own, without its assembler, and with no flag that could make it run or write something.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agent.profiling.records import Loop, Native
from atrex.dsl import cpp

_SECONDS = 20
_MOST_LETTERS = 1 << 19
_MOST_SOURCES = 4
_MEMORY_KIB = 4 << 20
_FILE_BLOCKS = 64 << 11  # of 512 bytes: 64 MiB
_MOST_LOOPS = 200
_LONGEST_LOOP = 20_000  # letters
_MOST_REPORT = 2 << 20  # letters
_LIMITED = f'ulimit -t {_SECONDS} -v {_MEMORY_KIB} -f {_FILE_BLOCKS}; exec "$@"'
# Flags of a candidate are passed on if they only tune code; -fplugin= and the like would run its own.
_HARMLESS = re.compile(
    r"-(O[0-3s]?|Ofast|m[a-z][\w.=+-]*|f(?!plugin|dump|save)[a-z][a-z-]*|ffp-contract=\w+)"
)
_REPORT = re.compile(r"^(\S+?):(\d+):\d+: (?:optimized|missed):\s+(.*)$", re.MULTILINE)
_VECTORISED = re.compile(r"loop vectorized using (\d+) byte vectors")
_HANDMADE = re.compile(r"\b_mm\d*_\w+|\b__m(128|256|512)|vector_size|\bv(ld|st)1q?_\w+|\bsv(ld|st)1\w*")
_PARALLEL = re.compile(
    r"#\s*pragma\s+omp\b.*\b(parallel|task)\b|\bstd::(j?thread|async)\b|\bpthread_create\b"
)
_STREAMING = re.compile(r"\b_mm\d*_stream_\w+|__builtin_nontemporal_store")
_LOOP = re.compile(r"\b(for|while|do)\b")
# GCC has vector forms of these (libmvec) under -ffast-math alone; its own reason rarely says so.
_SCALAR_CALL = re.compile(r"\b((?:exp|log|sin|cos|tan|erf|pow|tanh|expm1|log1p|exp2|log2)f?)\s*\(")
_NO_START = re.compile(r"\bfor\s*\(\s*;")


@dataclass(frozen=True, slots=True)
class Source:
    """One C++ source of a candidate, with the flags that it asks for."""

    text: str
    flags: tuple[str, ...] = ()


def look(candidate: str) -> tuple[Native | None, tuple[str, ...]]:
    """Everything about the C++ of a candidate's Python source, and notes; None where no source is found."""
    found, notes = sources(candidate)
    if not found:
        return None, notes
    reports = [report(source) for source in found]
    loops = tuple(loop for seen, _ in reports for loop in seen)
    text = "\n".join(source.text for source in found)
    return Native(
        loops=loops[:_MOST_LOOPS],
        vector_bytes=_vector_bytes(),
        handmade=bool(_HANDMADE.search(text)),
        parallel=bool(_PARALLEL.search(text)),
        streaming=bool(_STREAMING.search(text)),
    ), notes + tuple(dict.fromkeys(note for _, note in reports if note))


# The source, without importing it


def sources(candidate: str) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """The C++ sources that a candidate passes to `atrex.dsl.cpp.compile`, as far as they are literals.

    A literal, a name that is bound to one once, and sums, `"".join` and dedent of these are followed.
    """
    if len(candidate) > _MOST_LETTERS:
        return (), (f"the candidate is longer than {_MOST_LETTERS} letters: its C++ was not looked at",)
    try:
        return _sources(ast.parse(candidate))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the parser's stack is a memory error
        return (), ("the candidate cannot be parsed: its C++ was not looked at",)


def _sources(tree: ast.Module) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    literals, found, notes = _Literals(tree), list[Source](), list[str]()
    for call in _compile_calls(tree):
        arguments = {word.arg: word.value for word in call.keywords if word.arg}
        text = literals.text(call.args[0] if call.args else arguments.get("source"))
        if text is None:
            notes.append(f"line {call.lineno}: the C++ source is no literal and was not looked at")
            continue
        flags = call.args[2] if len(call.args) > 2 else arguments.get("flags")
        found.append(Source(text, literals.texts(flags)))
    if len(found) > _MOST_SOURCES:
        notes.append(f"only the first {_MOST_SOURCES} of {len(found)} C++ sources were looked at")
    if not found and not notes:
        notes.append("the candidate compiles no C++ through atrex.dsl.cpp")
    return tuple(found[:_MOST_SOURCES]), tuple(notes[:_MOST_SOURCES])


def _compile_calls(tree: ast.Module) -> Iterator[ast.Call]:
    modules, functions = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "atrex.dsl":
            modules |= {name.asname or name.name for name in node.names if name.name == "cpp"}
        elif isinstance(node, ast.ImportFrom) and node.module == "atrex.dsl.cpp":
            functions |= {name.asname or name.name for name in node.names if name.name == "compile"}
        elif isinstance(node, ast.Import):
            modules |= {name.asname or name.name for name in node.names if name.name == "atrex.dsl.cpp"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func) if isinstance(node.func, ast.Attribute | ast.Name) else ""
        if called in functions or called in {f"{module}.compile" for module in modules}:
            yield node


class _Literals:
    """The strings that a module's expressions stand for; a name is looked up once, whatever leads to it."""

    def __init__(self, tree: ast.Module) -> None:
        bound = dict[str, list[ast.expr]]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        bound.setdefault(target.id, []).append(node.value)
        self._bound = {name: values[0] for name, values in bound.items() if len(values) == 1}
        self._known: dict[str, str | None] = {}

    def text(self, node: ast.expr | None) -> str | None:
        """The string of an expression; None where it cannot be read off, or is very long."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            if node.id not in self._known:
                self._known[node.id] = None  # a name that leads to itself stands for nothing
                self._known[node.id] = self.text(self._bound.get(node.id))
            return self._known[node.id]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._joined("", [node.left, node.right])
        if not (isinstance(node, ast.Call) and len(node.args) == 1):
            return None
        (argument,) = node.args
        if ast.unparse(node.func) in ("dedent", "textwrap.dedent"):
            inner = self.text(argument)
            return None if inner is None else textwrap.dedent(inner)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "join":
            return self._joined(self.text(node.func.value), _items(argument))
        return None

    def texts(self, node: ast.expr | None) -> tuple[str, ...]:
        """The strings of a literal tuple or list."""
        if isinstance(node, ast.Name):
            node = self._bound.get(node.id)
        return tuple(text for item in _items(node) or () if (text := self.text(item)) is not None)

    def _joined(self, glue: str | None, items: Sequence[ast.expr] | None) -> str | None:
        parts = [self.text(item) for item in items or ()]
        known = [part for part in parts if part is not None]
        if glue is None or items is None or len(known) < len(parts):
            return None
        return glue.join(known) if sum(map(len, known)) <= _MOST_LETTERS else None


def _items(node: ast.expr | None) -> Sequence[ast.expr] | None:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else None


# The compiler's report


def report(source: Source) -> tuple[tuple[Loop, ...], str]:
    """Innermost loops of a source, by line, and a note where the compiler gives no report."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    flags = [flag for flag in source.flags if _HARMLESS.fullmatch(flag)]
    with tempfile.TemporaryDirectory(prefix="atrex-loops-") as directory:
        told = Path(directory) / "report.txt"
        command = (
            *(*compiler, *cpp.FLAGS, *flags, "-S", "-o", os.devnull),
            *(f"-fopt-info-vec-optimized-missed={told}", "-x", "c++", "-"),
        )
        note = _run(command, source.text, directory)
        text = _head(told)
    if not note and not text and "clang" in compiler[0]:
        note = "the report on loops needs GCC"
    return parse(text, source.text), note


def _head(path: Path) -> str:
    """The beginning of a report, which a source of many templates makes long; empty where there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_REPORT)
    except FileNotFoundError:
        return ""


def _run(command: Sequence[str], source: str, directory: str) -> str:
    """Run the compiler under limits; a note if it fails. It is killed with all that it started."""
    limited = ("sh", "-c", _LIMITED, "sh", *command)
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": directory}
    process = subprocess.Popen(
        limited,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        env=environment,
        start_new_session=True,
    )
    try:
        process.communicate(source.encode("utf-8", "replace"), timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"no report on loops: the compiler took more than {_SECONDS} s"
    return f"no report on loops: the compiler failed ({process.returncode})" if process.returncode else ""


@dataclass(frozen=True, slots=True, order=True)
class _Span:
    """Lines of a loop in the source: its first, the last of its header, the last of its body."""

    first: int
    header: int
    last: int

    def holds(self, other: _Span) -> bool:
        return self != other and self.first <= other.first and other.last <= self.last


def parse(text: str, source: str) -> tuple[Loop, ...]:
    """Loops of `source` in GCC's report, by line, once each.

    A loop that was vectorised in any of its copies (versions, instances of a template) counts as vectorised,
    at its widest. The reason of another stands right after it; the last is kept. Left out are loops around a
    loop that is reported too, and what a vectorised loop leaves over: a `for` without a start of its own.
    """
    spans, widths, reasons = _spans(source), dict[_Span, int](), dict[_Span, str]()
    missed: _Span | None = None
    for file, number, message in _REPORT.findall(text):
        at = int(number) if file == "<stdin>" else 0
        span = max((span for span in spans if span.first <= at <= span.header), default=None)
        if missed:
            reasons[missed] = _reason(message, inside=missed.first <= at <= missed.last) or reasons[missed]
        missed = None
        if (found := _VECTORISED.match(message)) and span:
            widths[span] = max(widths.get(span, 0), int(found[1]))
        elif message == "couldn't vectorize loop" and span:
            reasons.setdefault(span, "")
            missed = span
    reported, lines, loops = {*widths, *reasons}, source.splitlines(), list[Loop]()
    for span in sorted(s for s in reported if not any(s.holds(other) for other in reported)):
        line, width = lines[span.first - 1].strip(), widths.get(span)
        left_over = width is None and bool(loops) and loops[-1].vector_bytes and _NO_START.search(line)
        if not left_over:
            called = _SCALAR_CALL.search("\n".join(lines[span.first - 1 : span.last]))
            calls = f"it calls {called[1]}; " if called else ""
            reason = "" if width else calls + reasons[span]
            loops.append(Loop(line=span.first, source=line, vector_bytes=width, reason=reason))
    return tuple(loops)


def _reason(message: str, *, inside: bool) -> str:
    """Why the loop of the line before was not vectorised; empty if the message is about something else."""
    if message.startswith("not vectorized: "):
        return message.removeprefix("not vectorized: ").strip(" .;")[:160]
    if inside and message.startswith("statement clobbers memory: "):
        return f"a call in it: {message.removeprefix('statement clobbers memory: ').strip()[:120]}"
    return ""


def _spans(source: str) -> tuple[_Span, ...]:
    """Every loop of a source by its text, comments and strings skipped."""
    plain = _blanked(source)
    return tuple(
        _Span(*(plain.count("\n", 0, at) + 1 for at in (match.start(), *_ends(plain, match.end()))))
        for match in islice(_LOOP.finditer(plain), _MOST_LOOPS)
    )


def _ends(plain: str, at: int) -> tuple[int, int]:
    """Where a loop's header and its body end: the body at its closing brace, or at a semicolon outside."""
    depth, header = 0, 0
    for i in range(at, min(at + _LONGEST_LOOP, len(plain))):
        depth += (plain[i] in "({") - (plain[i] in ")}")
        if depth == 0 and plain[i] == ")":
            header = header or i
        if depth < 0 or (depth == 0 and plain[i] in ";}"):
            return header or at, i
    return header or at, min(at + _LONGEST_LOOP, len(plain))


def _blanked(source: str) -> str:
    """The source with comments, strings and preprocessor lines as spaces, line by line as long as before."""
    # What is left open ends with the line, or the file: no text makes the search start over again.
    pattern = (
        r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?|^[ \t]*#(?:[^\n\\]|\\.)*'
    )
    blank = re.compile(pattern, re.DOTALL | re.MULTILINE)
    return blank.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def _vector_bytes() -> int:
    """Width of the widest vectors that Linux lists for this CPU; 16 where it lists none."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return 16
    return 64 if "avx512f" in flags else 32 if "avx" in flags else 16

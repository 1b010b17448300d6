"""C++ kernels on the CPU: compile a source string with the system compiler, call it through ctypes.

    library = cpp.compile(SOURCE, {"scale": [cpp.pointer, cpp.i64, cpp.f32]})
    library.scale(tensor.data_ptr(), tensor.numel(), 2.0)

A function is `extern "C" void`; a pointer argument takes the integer of `Tensor.data_ptr()`, so a call costs
one ctypes call (0.7 µs with three pointers and four scalars) and nothing else. The interpreter lock is free
during the call.

Objects are kept by content (source, flags, compiler and what `-march=native` means on this CPU) under
`$ATREX_CACHE_DIR/cpp`, by default `~/.cache/atrex/cpp`. `$CXX` chooses the compiler.
`ATREX_CXX_SANITIZE=address` builds for AddressSanitizer, whose runtime must then be preloaded.

OpenMP: import torch before the library, so that both share torch's thread pool, and pass the number of
threads (`torch.get_num_threads()`) to the kernel for its `num_threads` clause: the library cannot know it
when torch carries an OpenMP runtime under a name of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrex.errors import EnvironmentProblem

pointer = ctypes.c_void_p
i32 = ctypes.c_int32
i64 = ctypes.c_int64
f32 = ctypes.c_float
f64 = ctypes.c_double

# No -ffast-math: NaN, infinities and subnormals must travel as the formula says, and linking with it makes
# older GCCs flush subnormals in the whole process. The two relaxations kept change no result.
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math"),
)
SANITIZE = {"address": ("-fsanitize=address", "-fno-omit-frame-pointer", "-g")}
ERROR_LINES = 5

# A kernel's code is its own: it links what the language and OpenMP need, and opens nothing while it runs.
_OWN = ("-Wl,-z,defs",)
_RUNTIMES = re.compile(
    r"(?:ld-linux[\w-]*|lib(?:c|m|mvec|stdc\+\+|gcc_s|pthread|gomp|omp|c\+\+|c\+\+abi|asan))\.so"
)
_OPENING = re.compile(r"\bUND (dlopen|dlmopen|dlsym|dlvsym)\b")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_UNSANITIZED = re.compile(r"\w*no_sanitize\w*|no_address_safety_analysis")


class CompileError(RuntimeError):
    """The source does not compile, link or load; the message holds the compiler's first error lines."""


class Library:
    """The functions of one compiled source, each an attribute; `path` is the shared object."""

    def __init__(self, path: Path, functions: Mapping[str, Sequence[type[Any]]]) -> None:
        self.path = path
        try:
            handle = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            raise CompileError(f"the compiled object cannot be loaded: {error}") from error
        for name, argument_types in functions.items():
            try:
                function = handle[name]
            except AttributeError:
                raise CompileError(f'no function {name!r} in the source: declare it `extern "C"`') from None
            function.argtypes = list(argument_types)
            function.restype = None
            setattr(self, name, function)
            _functions[id(function)] = function
            if _recordings:
                function.errcheck = _record

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., None]: ...


def compile(source: str, functions: Mapping[str, Sequence[type[Any]]], flags: Sequence[str] = ()) -> Library:
    """Compile `source`, or take the cached object of the same content, and load it.

    Args:
        source: one C++17 translation unit that defines each function as `extern "C" void`.
        functions: argument types (`pointer`, `i32`, `i64`, `f32`, `f64`) by function name.
        flags: further compiler flags, after (and so stronger than) `FLAGS`.

    Raises:
        CompileError: the source does not compile or load, lacks a function, or has others compute.
        EnvironmentProblem: no compiler, no writable cache, or a sanitizer that is not preloaded.
    """
    sanitize = _sanitizer_flags()
    command = (*_compiler(), *FLAGS, *flags, *_OWN, *sanitize)
    identity = "\0".join((source, *command, _target(_compiler())))
    path = cache_directory() / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.so"
    if not path.exists():
        if sanitize:
            _require_sanitized(command, source)
        _build(command, source, path)
    return Library(path, functions)


def cache_directory() -> Path:
    """The directory of compiled objects, made if missing, private to the user.

    Raises:
        EnvironmentProblem: it can be neither found nor made.
    """
    root = os.environ.get("ATREX_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(root) / "cpp" if root else Path(home).expanduser() / "atrex" / "cpp"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(directory, error) from error
    return directory


def asan_runtime() -> Path | None:
    """The AddressSanitizer runtime to preload (LD_PRELOAD) into a process that loads a sanitized library.

    None where there is none: no GCC, or a GCC without libasan. Clang's runtime is not supported.
    """
    compiler = _compiler()
    if "__clang__" in _target(compiler):
        return None
    found = Path(_ask((*compiler, "-print-file-name=libasan.so")).strip())
    return found if found.is_absolute() and found.exists() else None


# Every function that is alive, and the lists that its calls are recorded in. A recording hooks ctypes' own
# errcheck, so a function pays nothing outside one, and a reference that a kernel has kept is recorded too.
_functions: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_recordings: list[list[str]] = []


@contextlib.contextmanager
def launches() -> Iterator[list[str]]:
    """Record the names of the compiled functions called inside, in order of return."""
    names: list[str] = []
    _recordings.append(names)
    for function in list(_functions.values()):
        function.errcheck = _record
    try:
        yield names
    finally:
        _recordings[:] = [other for other in _recordings if other is not names]
        if not _recordings:
            for function in list(_functions.values()):
                del function.errcheck


@contextlib.contextmanager
def withheld() -> Iterator[None]:
    """Compiled functions called inside do nothing: they lead to a C function that ignores its arguments."""
    nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    slots = [ctypes.c_void_p.from_address(ctypes.addressof(one)) for one in _functions.values()]
    before = [slot.value for slot in slots]
    for slot in slots:
        slot.value = nothing
    try:
        yield
    finally:
        for slot, address in zip(slots, before, strict=True):
            slot.value = address


def _record(result: Any, function: Any, _arguments: tuple[Any, ...]) -> Any:
    for names in _recordings:
        names.append(function.__name__)
    return result


def _build(command: Sequence[str], source: str, path: Path) -> None:
    """Compile into a temporary file beside `path`, then rename: a reader never sees half an object."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".building-", suffix=".so")
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    os.close(descriptor)
    try:
        done = _run((*command, "-x", "c++", "-", "-o", temporary), source)
        if done.returncode:
            raise CompileError(_first_errors(done.stderr))
        _require_own_code(_ask(("readelf", "-W", "-d", "--dyn-syms", temporary)))
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _require_own_code(dynamic: str) -> None:
    """Raise CompileError for an object that links another library than a runtime, or could open one."""
    wrong = [f"links {name}" for name in _NEEDED.findall(dynamic) if not _RUNTIMES.match(name)]
    wrong += [f"uses {name}" for name in _OPENING.findall(dynamic)]
    if wrong:
        raise CompileError(f"the C++ source {wrong[0]}: a kernel computes with its own code")


def _require_sanitized(command: Sequence[str], source: str) -> None:
    """Raise CompileError for a source, its macros expanded, that AddressSanitizer would not see all of."""
    done = _run((*command, "-E", "-x", "c++", "-"), source)
    own, line_of_source = list[str](), True
    for line in done.stdout.splitlines():
        if line.startswith("# "):
            line_of_source = '"<stdin>"' in line
        elif line_of_source:
            own.append(re.sub(r'"(?:\\.|[^"\\])*"', '""', line))
    if found := _UNSANITIZED.search("\n".join(own)):
        raise CompileError(f"the C++ source says {found[0]}: its accesses cannot be checked")


def _unwritable(directory: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"cannot write to {directory} ({error.strerror}): set ATREX_CACHE_DIR to a writable directory"
    )


def _first_errors(log: str) -> str:
    """The first lines of a compiler's log that name an error, or its first lines if none does."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "undefined" in line]
    return "the C++ source does not compile:\n" + "\n".join((errors or lines)[:ERROR_LINES])


def _compiler() -> tuple[str, ...]:
    """The compiler's command: `$CXX`, else g++, else clang++."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen and shutil.which(chosen[0]):
        return tuple(chosen)
    if chosen:
        raise EnvironmentProblem(f"CXX={chosen[0]} is not on the PATH: unset CXX, or name a C++17 compiler")
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return (name,)
    raise EnvironmentProblem(
        "no C++ compiler: install g++ or clang++ (apt-get install g++), or set CXX to a C++17 compiler"
    )


def compiler_version() -> str:
    """The first line of the compiler's `--version`. Raises EnvironmentProblem."""
    return _ask((*_compiler(), "--version")).splitlines()[0]


@functools.cache
def _target(compiler: tuple[str, ...]) -> str:
    """The compiler's predefined macros: its version, and every CPU feature that `native` turns on."""
    return _ask((*compiler, "-march=native", "-fopenmp", "-dM", "-E", "-x", "c++", os.devnull))


def _sanitizer_flags() -> tuple[str, ...]:
    name = os.environ.get("ATREX_CXX_SANITIZE", "")
    if not name:
        return ()
    if name not in SANITIZE:
        raise EnvironmentProblem(f"ATREX_CXX_SANITIZE={name}: only 'address' is known")
    # Loading a sanitized library without its runtime would end the process without a word to us.
    if not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise EnvironmentProblem(
            f"ATREX_CXX_SANITIZE=address needs AddressSanitizer's runtime: set LD_PRELOAD={asan_runtime()}"
        )
    return SANITIZE[name]


def _ask(command: Sequence[str]) -> str:
    done = _run(command)
    if done.returncode:
        raise EnvironmentProblem(f"{shlex.join(command)} failed: {done.stderr.strip()[:200]}")
    return done.stdout


def _run(command: Sequence[str], source: str = "") -> subprocess.CompletedProcess[str]:
    """Run the compiler without our preloads: a compiler under AddressSanitizer fails on its own leaks."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | {"LC_ALL": "C"}
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False, env=environment)

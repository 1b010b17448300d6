"""How fast a large Kineto trace is read, in how much memory; and whether spoilt ones are refused.

    python benchmarks/trace_ingest.py --megabytes 1000 --jobs 2
    python benchmarks/trace_ingest.py --megabytes 1000 --hta /tmp/hta/bin/python
    python benchmarks/trace_ingest.py --fuzz 600

The trace is a recorded one, repeated with fresh ids and shifted times, as a longer recording would be. With
--hta, HolisticTraceAnalysis (a Python that has it) reads the same file, to its table of kernels. Memory is
the resident set of all processes together, looked at 50 times a second.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from traces.ingest import ingest
from traces.readers import UnreadableTrace

RECORDED = Path(__file__).parents[1] / "tests/traces/recorded"
NUMBERS = re.compile(
    rb'"(ts|External id|correlation|id|Record function id|Ev Idx|Python id|Python parent id)": '
    rb"(-?\d+(?:\.\d+)?)"
)
HTA = """
import sys, time
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
analysis.get_gpu_kernel_breakdown(visualize=False)
"""
OURS = """
import sys
from pathlib import Path
from traces.ingest import ingest
if __name__ == "__main__":
    found = ingest(Path(sys.argv[1]), jobs=int(sys.argv[2]))
    print(f"{len(found.entries)} entries, {sum(e.launches for e in found.entries)} launches, "
          f"{found.device_us / 1e6:.3f} s of device time, complaints: {list(found.complaints)}")
"""


def enlarge(source: Path, target: Path, size: int) -> int:
    """Write a trace of at least `size` bytes, by repetition of a recorded one. Returns how often."""
    whole = gzip.decompress(source.read_bytes())
    head, _, rest = whole.partition(b'"traceEvents": [')
    body, _, tail = rest.rpartition(b"\n  ],")
    parts, fields = _template(body)
    stamps = [value for name, value in fields if name == b"ts"]
    span = max(stamps) - min(stamps) + 1_000_000
    stride = max(value for name, value in fields if name not in (b"ts", b"Python parent id")) + 1
    repeats = -(-size // len(body))
    with target.open("wb") as file:
        file.write(head + b'"traceEvents": [')
        for number in range(repeats):
            file.write(b"," if number else b"")
            file.write(_filled(parts, fields, span * number, stride * number))
        file.write(b"\n  ]," + tail)
    return repeats


def _template(body: bytes) -> tuple[list[bytes], list[tuple[bytes, int]]]:
    """The text between numbers, and the numbers: ids, and times in nanoseconds."""
    parts, fields, last = [], [], 0
    for match in NUMBERS.finditer(body):
        parts.append(body[last : match.start(2)])
        name, text = match[1], match[2].decode()
        whole, _, fraction = text.partition(".")
        fields.append((name, int(whole + fraction.ljust(3, "0")[:3]) if name == b"ts" else int(whole)))
        last = match.end()
    return [*parts, body[last:]], fields


def _filled(parts: list[bytes], fields: list[tuple[bytes, int]], later: int, ids: int) -> bytes:
    written = []
    for part, (name, value) in zip(parts, fields, strict=False):
        written.append(part)
        if name == b"ts":
            moved = value + later
            written.append(b"%d.%03d" % (moved // 1000, moved % 1000))
        else:
            written.append(b"%d" % (value + ids))
    return b"".join([*written, parts[-1]])


@dataclass(frozen=True, slots=True)
class Run:
    """What a command took, with all its children."""

    seconds: float
    processor: float  # seconds of processors, which others' work does not lengthen much
    most: int  # resident bytes
    printed: str  # last line


def measured(command: list[str]) -> Run:
    """Run a command and look at what it takes. Raises SystemExit with its last lines if it fails."""
    began, used, most = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        parent = psutil.Process(child.pid)
        while child.poll() is None:
            most = max(most, _resident(parent))
            time.sleep(0.02)
        seconds = time.monotonic() - began
        printed = child.stdout.read().strip().splitlines() if child.stdout else []
    if child.returncode:
        raise SystemExit("\n".join(printed[-5:]))
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return Run(seconds, processor, most, printed[-1] if printed else "")


def _resident(parent: psutil.Process) -> int:
    total = 0
    try:
        for process in (parent, *parent.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """A trace with something wrong: bytes, their end, or a value of any kind in an event or beside them."""
    way = chance.choice([0, 1, 2, 3, 3, 3, 3])  # most of what is cut or flipped is refused at once
    if way == 0:
        return data[: chance.randrange(len(data) + 1)]
    if way == 1:
        return _flipped(data, chance)
    if way == 2:
        start, stop = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        return data[:start] + data[stop:] if chance.random() < 0.5 else data[:stop] + data[start:]
    try:
        trace = json.loads(data)
    except (ValueError, RecursionError):
        return _flipped(data, chance)
    for _ in range(chance.randrange(1, 6)):
        _replace(trace, chance)
    text = json.dumps(trace, indent=chance.choice([None, 2]), ensure_ascii=chance.random() < 0.5)
    packed = text.encode(errors="surrogatepass")
    return gzip.compress(packed, 1) if chance.random() < 0.1 else packed


def _flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 9) if changed else 0):
        changed[chance.randrange(len(changed))] = chance.choice(b'{}[]",:\\0-e\x00\xff\n ')
    return bytes(changed)


def _replace(place: Any, chance: random.Random) -> None:
    """Put a value of any kind somewhere below."""
    while isinstance(place, dict | list) and place:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if chance.random() < 0.3 or not isinstance(place[key], dict | list) or not place[key]:
            place[key] = any_value(chance)
            return
        place = place[key]


def any_value(chance: random.Random) -> Any:
    """Something that JSON writers put out, or should not."""
    deep: Any = 1
    for _ in range(chance.choice([1, 200, 900])):
        deep = [deep] if chance.random() < 0.5 else {"args": deep}
    simple = [None, True, 0, -1, 1 << 63, -(1 << 63), 1 << 100, 1e308, -0.5, float("nan"), float("inf")]
    texts = [
        "",
        "kernel",
        "cpu_op",
        "X",
        "\ud800",
        "\x00",
        "nn.Module: A_0",
        "x" * 10000,
        "[TP00] 1",
        "{",
        "},\n  {",
    ]
    return chance.choice([*simple, *texts, [], {}, [[1]], {"a": 1}, deep])


def fuzz(seconds: float, seed: int) -> None:
    """Spoil recorded traces until the time is up; every other error than UnreadableTrace ends it."""
    chance, ended = random.Random(seed), Counter[str]()
    seeds = [small(gzip.decompress(path.read_bytes())) for path in sorted(RECORDED.glob("*.json.gz"))]
    began, slowest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "fuzzed.json"
        while time.monotonic() - began < seconds:
            data = chance.choice(seeds)
            for _ in range(chance.randrange(1, 4)):
                data = spoilt(data, chance)
            path.write_bytes(data)
            start = time.monotonic()
            ended[outcome(path)] += 1
            slowest = max(slowest, time.monotonic() - start)
    print(f"{ended.total()} inputs in {seconds:.0f} s, seed {seed}: {dict(ended)}; slowest {slowest:.2f} s")


def outcome(path: Path) -> str:
    """How a file was taken: read, read with complaints, or refused. Any other error is a fault."""
    try:
        found = ingest(path)
    except UnreadableTrace as error:
        if "\n" in str(error) or str(path) not in str(error):
            raise AssertionError(f"not one line that names the file: {error!r}") from error
        return "refused"
    return "read, with complaints" if found.complaints else "read"


def small(whole: bytes, most: int = 8) -> bytes:
    """A trace of the first few events of each category of a recorded one."""
    trace = json.loads(whole)
    kinds: Counter[str] = Counter()
    kept = []
    for event in trace["traceEvents"]:
        kind = event.get("cat", "")
        kinds[kind] += 1
        if kinds[kind] <= most:
            kept.append(event)
    return json.dumps({**trace, "traceEvents": kept}).encode()


def main() -> None:
    """Measure, or fuzz."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--source", default="llama-decode", help="a trace of tests/traces/recorded")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--packed", action="store_true", help="read it gzipped, too")
    parser.add_argument("--hta", type=Path, help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--fuzz", type=float, help="seconds; then nothing is measured")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.fuzz:
        fuzz(options.fuzz, options.seed)
        return
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "large.json"
        repeats = enlarge(RECORDED / f"{options.source}.json.gz", path, options.megabytes * 10**6)
        size = path.stat().st_size
        print(f"{options.source} {repeats} times: {size / 1e6:.0f} MB", flush=True)
        script = Path(name) / "ours.py"
        script.write_text(OURS)
        runs: dict[str, Callable[[], Run]] = {}
        runs["atrex"] = lambda: measured([sys.executable, str(script), str(path), str(options.jobs)])
        if options.packed:
            packed = path.with_suffix(".json.gz")
            with path.open("rb") as plain, gzip.open(packed, "wb", 6) as file:
                while piece := plain.read(1 << 20):
                    file.write(piece)
            runs["atrex, gzipped"] = lambda: measured([sys.executable, str(script), str(packed), "1"])
        if options.hta:
            runs["HTA"] = lambda: measured([str(options.hta), "-c", HTA, str(path)])
        for what, run in runs.items():
            took = run()
            rate, memory = size / 1e6 / took.seconds, took.most / 2**30
            times = f"{took.seconds:.1f} s, {rate:.0f} MB/s, {took.processor:.1f} processor seconds"
            print(f"{what}: {times}, {memory:.2f} GiB; {took.printed}", flush=True)


if __name__ == "__main__":
    main()

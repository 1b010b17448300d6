"""What both doubles do: a tool that speaks its format and really works, badly or well, in its directory.

The prompt chooses: a mode's name, then its arguments. A double prints events, edits kernel.py, starts
processes and fills disks for real; only the model behind it is missing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

FIRST, SECOND = "class Model: a = 1\n", "class Model: b = 2\n"
CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Voice(Protocol):
    """One tool's way to say things."""

    def start(self) -> None: ...

    def say(self, text: str, *, tokens: int = 100) -> None:
        """One call of the model that ends in this text and was billed as these tokens."""

    def end(self, text: str) -> None: ...

    def fail(self, text: str) -> None: ...

    def name(self, model: str) -> None:
        """Say which model answers."""


def write(source: str) -> None:
    Path("kernel.py").write_text(source)


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    return f"exit code {done.returncode}: {''.join(last)}"


def wrong_then_right(voice: Voice, path: str, *verify: str) -> None:
    """A wrong kernel, the verdict on it, a right one, the verdict on that; every verdict is real."""
    right = Path(path).read_text()
    write(right.replace("sum / hidden + eps", "sum / hidden"))
    voice.say(f"first {run('./verify', *verify)}")
    write(right)
    voice.say(f"then {run('./verify', *verify)}")
    voice.end("done")


def versions(voice: Voice) -> None:
    """Versions, two of them unfinished, one the first again, and cases of its own."""
    Path("cases.yaml").write_text("name: mine\n")
    for source in (FIRST, "def half(\n", "", SECOND, FIRST):
        write(source)
        voice.say("saved")
        time.sleep(0.3)
    voice.end("done")


def spend(voice: Voice, tokens: str) -> None:
    """Calls without end."""
    write(FIRST)
    for _ in range(2000):
        voice.say("more", tokens=int(tokens))
        time.sleep(0.05)


def hang(voice: Voice, marker: str) -> None:
    """Two children, one of them in a session of its own; nobody cares for SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for own_session in (False, True):
        subprocess.Popen([sys.executable, "-c", CHILD, marker], start_new_session=own_session)
    voice.say("hanging")
    os.close(1)
    time.sleep(600)


def fork(voice: Voice, marker: str) -> None:
    """A child that outlives its parent and holds its standard output."""
    subprocess.Popen([sys.executable, "-c", CHILD, marker], start_new_session=True)
    write(FIRST)
    voice.end("done")


def garbage(voice: Voice) -> None:
    """Lines that are no events, or absurd ones, between good ones."""
    out = sys.stdout.buffer
    absurd = (
        b'{"type": "assistant", "message": {"id": 7, "usage": {"input_tokens": -1e400, "output_tokens": []}}}'
    )
    for line in (
        b"\xff\xfe\x00",
        b"[1]",
        b"{" * 3000,
        b'{"type":',
        b"x" * (6 << 20),
        absurd,
        b'{"type": {}}',
    ):
        out.write(line + b"\n")
    out.flush()
    voice.say("still here")
    voice.end("done")
    out.write(b"no end of line")


def crash(voice: Voice) -> None:
    sys.exit("Segmentation fault, or so it says")


def refused(voice: Voice) -> None:
    voice.fail("Not logged in · Please run /login")


def fill(voice: Voice) -> None:
    """A file a time until somebody stops it."""
    for number in range(4000):
        Path(f"junk-{number}").write_bytes(b"\0" * (1 << 20))
        time.sleep(0.01)
    voice.end("there was room")


def spy(voice: Voice, *wanted: str) -> None:
    """Looks for what it should not see: texts in its directory and in other processes, and other places."""
    texts = [path.read_bytes() for path in Path().rglob("*") if path.is_file() and not path.is_symlink()]
    others = [each for each in Path("/proc").glob("[0-9]*/environ") if each.parent.name != str(os.getpid())]
    texts += [each.read_bytes() for each in others if os.access(each, os.R_OK)]
    found = [text for text in wanted if any(text.encode() in each for each in texts)]
    places = [place for place in wanted if place.startswith("/") and list(Path(place).glob("*"))]
    voice.end(f"found {found} {places}")


def environment(voice: Voice) -> None:
    voice.end(" ".join(f"{name}={value}" for name, value in os.environ.items()))


def key() -> str:
    return next(value for name, value in os.environ.items() if name in ("ANTHROPIC_API_KEY", "CODEX_API_KEY"))


def leaks(voice: Voice) -> None:
    """Its key in the kernel, after a version without it, and in a file beside it."""
    for path, text in (("kernel.py", FIRST), ("notes.txt", key()), ("kernel.py", f"{FIRST}# {key()}\n")):
        Path(path).write_text(text)
        voice.say("saved")
        time.sleep(0.3)
    voice.end("done")


def talks(voice: Voice) -> None:
    """Its key in the name of the model and in the complaint."""
    voice.name(f"model-{key()}")
    voice.say("now named")
    voice.fail(f"the key {key()} is refused")


def cut_off(voice: Voice, count: str) -> None:
    """So many versions and half of the next, when its tokens are used up."""
    for number in range(int(count)):
        write(f"class Model: a = {number}\n")
        voice.say("saved")
        time.sleep(0.3)
    write("class Model:\n    def forward(self, x")
    while True:
        voice.say("more", tokens=1_000_000)
        time.sleep(0.1)


def farewell(voice: Voice) -> None:
    """When it is told to end, it saves what it has and makes a last call."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # not in the middle of its words
    write(FIRST)
    voice.say("working")
    signal.sigwait({signal.SIGTERM})
    write(SECOND)
    voice.say("farewell", tokens=5000)


def called(voice: Voice) -> None:
    """How it was called, what was in the kernel's place, and what lies beside its directory."""
    voice.say(f"arguments {' '.join(sys.argv)}")
    voice.say(f"kernel {Path('kernel.py').read_text()!r}, beside {os.listdir('..')}")
    voice.end("done")


def pipe(voice: Voice) -> None:
    """Leaves something at the kernel's place that would block its reader."""
    os.unlink("kernel.py")
    os.mkfifo("kernel.py")
    voice.end("done")


MODES = {each.__name__: each for each in (
    wrong_then_right, versions, spend, hang, fork, garbage, crash, refused, fill, spy, environment, pipe,
    leaks, talks, cut_off, farewell, called,
)}  # fmt: skip


def main(voice: Voice) -> None:
    mode, *arguments = sys.stdin.read().split()
    voice.start()
    MODES[mode](voice, *arguments)

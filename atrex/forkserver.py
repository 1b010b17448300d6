"""The fork server, `python -m atrex.forkserver DESCRIPTOR`: imports once, then forks sandboxed workers.

For each worker three processes are forked, each from the one before:

    launcher   leaves the judge's namespaces, forks, and ends
    warden     trusted; pid 1 of the new namespaces; see atrex.warden
    worker     untrusted; enters the sandbox, then calls the entry

The server has one thread, never initialises CUDA (a CUDA context does not survive a fork), and ends when
the judge closes its control socket; wardens end with the server.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn

from atrex import linux, sandbox, warden
from atrex.channel import Channel, ChannelClosed

_MAX_FDS = 16
_ANY_DESCRIPTOR = 1 << 20


def main() -> None:
    """Preload what the judge names, say so, and fork a worker for every request."""
    control = Channel.of(int(sys.argv[1]), max_fds=_MAX_FDS)
    try:
        message, _ = control.receive()
        control.send({"error": preload(message["preload"])})
        serve(control)
    except ChannelClosed:
        return


def preload(modules: Collection[str]) -> str | None:
    """Import `modules`; what is wrong with them, if anything."""
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - whatever a module raises goes to the judge
        return f"cannot import {module}: {type(error).__name__}: {error}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return f"one of {', '.join(modules)} initialises CUDA when imported, which forbids forking"
    gc.collect()
    gc.freeze()  # so that no collection in a worker touches, and so copies, the pages of what is preloaded
    return None


def serve(control: Channel) -> None:
    """Fork one worker for every request, until the judge closes the control socket."""
    linux.adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then collects ended children itself
    # No process but this one holds the write end, so wardens see the end of file when the server ends.
    lifeline, held = os.pipe()
    while True:
        request, fds = control.receive()
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            _never_return(partial(_launch, request, fds, lifeline, (control.fileno(), held)))
        for fd in fds:
            os.close(fd)


def _never_return(body: Callable[[], None]) -> NoReturn:
    """Run the whole life of a forked child; its end must not unwind into the server's loop."""
    code = 1
    try:
        body()
        code = 0
    except MemoryError:
        code = warden.EXIT_OUT_OF_MEMORY
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - the last frame of this process
        traceback.print_exc()
    finally:
        os._exit(code & 0xFF)


def _launch(request: Mapping[str, Any], fds: tuple[int, ...], lifeline: int, server: tuple[int, ...]) -> None:
    """In the launcher: fork a warden into new namespaces."""
    channel, log, leash = fds
    for fd in server:
        os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    policy = sandbox.SandboxPolicy.from_json(request["policy"])
    layers = sandbox.separate(policy, wrapped=request["wrapped"])
    if os.fork() == 0:
        _never_return(partial(_guard, request, policy, layers, (channel, leash, lifeline)))


def _guard(
    request: Mapping[str, Any],
    policy: sandbox.SandboxPolicy,
    layers: tuple[sandbox.Layer, ...],
    fds: tuple[int, int, int],
) -> None:
    """In the warden: arrange the mounts, fork the worker, and watch it."""
    channel, leash, lifeline = fds
    os.setsid()
    layers += (*sandbox.furnish(policy, layers), warden.LAYER)
    worker = os.fork()
    if worker == 0:
        for fd in (leash, lifeline):
            os.close(fd)
        _never_return(partial(_work, request, policy, layers, channel))
    _close_all_but(0, 1, 2, leash, lifeline)
    warden.watch(worker, policy, Channel.of(leash), lifeline)


def _work(
    request: Mapping[str, Any],
    policy: sandbox.SandboxPolicy,
    layers: tuple[sandbox.Layer, ...],
    descriptor: int,
) -> None:
    """In the worker: enter the sandbox, report its layers, call the entry."""
    if not policy.instrumented:  # compute-sanitizer's own must stay: CUDA under it ends the process without
        _close_all_but(0, 1, 2, descriptor)
    sys.stdout, sys.stderr = _lossy(1), _lossy(2)
    layers += sandbox.enter(policy)
    os.environ.update(request["environment"])
    linux.die_with_parent(signal.SIGKILL)  # for want of a PID namespace
    channel = Channel.of(descriptor, max_fds=_MAX_FDS)
    channel.send({"layers": [asdict(layer) for layer in layers]})
    module, _, function = request["entry"].partition(":")
    getattr(importlib.import_module(module), function)(channel)


def _close_all_but(*kept: int) -> None:
    """Only after the last fork of ours: the fork handlers of a tool around the server may need its own."""
    bounds = [*sorted(kept), _ANY_DESCRIPTOR]
    for low, high in pairwise(bounds):
        os.closerange(low + 1, high)


class _LossyFile(io.FileIO):
    """A log that drops what it has no room for: a talkative candidate is not a broken one."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _lossy(descriptor: int) -> io.TextIOWrapper:
    raw = _LossyFile(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


if __name__ == "__main__":
    main()

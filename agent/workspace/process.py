"""A running tool: started behind a guard, ended with all that it started."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from agent.workspace.guard import Plan
from atrex.errors import EnvironmentProblem

_STARTUP = 60.0  # seconds for the guard to build its walls; on a busy machine they take a fraction of one
_SLACK = 10.0  # seconds beyond the grace after which the guard itself is killed


class Agent:
    """A tool under way; a context manager that ends it. Raises EnvironmentProblem if the guard fails."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        prompt: str,
        plan: Plan,
    ) -> None:
        self._grace = plan.grace
        self._leash, theirs = socket.socketpair()
        guard = [sys.executable, "-P", "-m", "agent.workspace.guard", str(theirs.fileno()), plan.to_json()]
        with theirs, tempfile.TemporaryFile() as question:
            question.write(prompt.encode())
            question.seek(0)
            self._guard = subprocess.Popen(
                [*guard, *command],
                cwd=directory,
                env=environment,
                stdin=question,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is ours to answer
            )
        self.walls: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self._leash.settimeout(_STARTUP)
        try:
            with self._leash.makefile("rb") as reports:
                self.walls = tuple(json.loads(reports.readline()))
        except (OSError, ValueError):
            self.end()
            said = self.stderr.read().decode(errors="replace").strip() or "it ended without a word"
            self._close()
            raise EnvironmentProblem(f"the tool's guard did not start: {said.splitlines()[-1]}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        self._close()

    def _close(self) -> None:
        self.stdout.close()
        self.stderr.close()

    @property
    def stdout(self) -> IO[bytes]:
        """The tool's events."""
        assert self._guard.stdout is not None
        return self._guard.stdout

    @property
    def stderr(self) -> IO[bytes]:
        """The tool's complaints."""
        assert self._guard.stderr is not None
        return self._guard.stderr

    @property
    def code(self) -> int | None:
        """Exit code of the tool, 128 and more for a signal; None while it runs."""
        return self._guard.poll()

    def end(self) -> int:
        """End the tool and everything it started: SIGTERM, some seconds, SIGKILL. Its exit code."""
        self._leash.close()
        try:
            return self._guard.wait(self._grace + _SLACK)
        except subprocess.TimeoutExpired:
            self._guard.kill()  # its inner half dies with it, and the namespace with that
            return self._guard.wait()

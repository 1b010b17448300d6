"""The two tools: how each is found, called and told apart from its surroundings (docs/cli_agents.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent.models.keys import Key, needed
from agent.workspace.code import CHECKOUT
from agent.workspace.meters import ClaudeMeter, CodexMeter, Meter
from atrex.environment import scrubbed_environment
from atrex.errors import EnvironmentProblem

Tool = Literal["claude-code", "codex"]


@dataclass(frozen=True, slots=True)
class Program:
    """A tool as it is installed."""

    command: str
    install: str
    keys: tuple[str, ...]
    """Variables that may hold its key, the first that is set counts; the tool gets it as the first."""


PROGRAMS: dict[Tool, Program] = {
    "claude-code": Program("claude", "npm install -g @anthropic-ai/claude-code", ("ANTHROPIC_API_KEY",)),
    "codex": Program("codex", "npm install -g @openai/codex", ("CODEX_API_KEY", "OPENAI_API_KEY")),
}

_TOOLS = "Bash,Read,Edit"  # all that Claude Code has in its bare mode
_SETTINGS = {
    # No updates, no telemetry, and time for a whole ./verify in the foreground.
    "claude-code": {
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "BASH_DEFAULT_TIMEOUT_MS": "600000",
        "BASH_MAX_TIMEOUT_MS": "1200000",
    },
    "codex": {},
}
_NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_NETWORK_NODE = "NODE_EXTRA_CA_CERTS"


def locate(tool: Tool) -> str:
    """Path of the tool's command. Raises EnvironmentProblem, saying how to get it."""
    program = PROGRAMS[tool]
    if found := shutil.which(program.command):
        return os.path.abspath(found)
    raise EnvironmentProblem(f"{tool}: no command {program.command} on the PATH; get it by {program.install}")


def key_of(tool: Tool) -> Key:
    """The tool's key. Raises EnvironmentProblem, naming the variable."""
    names = PROGRAMS[tool].keys
    return needed(next((name for name in names if os.environ.get(name, "").strip()), names[0]))


def version(tool: Tool, executable: str, environment: Mapping[str, str]) -> str:
    """What the tool says of its version. Raises EnvironmentProblem if it does not start."""
    try:
        done = subprocess.run(
            [executable, "--version"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"{tool}: {executable} does not start ({error}); install it again") from None
    return done.stdout.decode(errors="replace").strip().partition("\n")[0][:100]


def environment(tool: Tool, home: Path) -> dict[str, str]:
    """What the tool sees of our environment, without any key: paths, locale, compilers, a way to the network.

    A proxy's address that holds a password is left out. Home, settings and caches are in `home`.
    """
    places = {"claude-code": "CLAUDE_CONFIG_DIR", "codex": "CODEX_HOME"}
    extra = {**_SETTINGS[tool], places[tool]: str(settings(tool, home))}
    if tool == "claude-code":
        extra["CLAUDE_CODE_TMPDIR"] = str(home / "tmp")
    if (CHECKOUT / "pyproject.toml").exists():
        paths = [str(CHECKOUT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        extra["PYTHONPATH"] = os.pathsep.join(paths)
    for name in (*_NETWORK, *map(str.lower, _NETWORK), _NETWORK_NODE):
        if (value := os.environ.get(name)) and "@" not in value:
            extra[name] = value
    return scrubbed_environment(home, extra)


def settings(tool: Tool, home: Path) -> Path:
    """Where the tool keeps its settings and records."""
    return home / tool


def command(tool: Tool, executable: str, model: str, turns: int | None, dollars: float | None) -> list[str]:
    """The command line; the prompt comes by standard input."""
    if tool == "claude-code":
        line = [executable, "--bare", "-p", "--output-format", "stream-json", "--verbose"]
        line += ["--include-partial-messages", "--no-session-persistence", "--disable-slash-commands"]
        line += ["--strict-mcp-config", "--tools", _TOOLS, "--allowedTools", _TOOLS]
        line += ["--max-turns", str(turns)] if turns is not None else []
        line += ["--max-budget-usd", str(dollars)] if dollars is not None else []
        return line + (["--model", model] if model else [])
    line = [executable, "exec", "--json", "--skip-git-repo-check", "--ignore-user-config", "--ignore-rules"]
    # Its own sandbox forbids the sockets that ./verify needs and hides the GPU: ours stands around it.
    line += ["--dangerously-bypass-approvals-and-sandbox"]
    line += ["-c", "shell_environment_policy.ignore_default_excludes=false"]  # commands do not see the key
    return [*line, *(["-m", model] if model else []), "-"]


def meter(tool: Tool, home: Path, model: str) -> Meter:
    """What reads the tool's events."""
    return ClaudeMeter(model) if tool == "claude-code" else CodexMeter(settings(tool, home), model)

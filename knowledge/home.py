"""Where Atrex keeps what it can rebuild or has learned on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """`$ATREX_HOME`, or `~/.cache/atrex` when it is unset or empty; not created here."""
    configured = os.environ.get("ATREX_HOME")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "atrex"

"""Where the wall time of a search went, from its ledger: gates, timing, models, profiles, and the harness.

    python benchmarks/overhead.py runs/20261130T…-rms_norm-cpu-1a2b

An event carries the seconds of the run at which it was recorded, so what lies between two events is the
later one's. Gates include compiling. What is left is the harness: prompts, reading answers, retrieval, the
ledger, the state.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path

from agent import context
from agent.events import Missed, Proposal
from agent.history import events
from agent.lab import Knowledge
from agent.prompts.situation import situation
from agent.state import fold
from atrex.errors import AtrexError

_WHOSE = {
    "measured": "timing",
    "compared": "timing",
    "judged": "gates",
    "profiled": "profiles",
}


def spent(ledger: Path) -> dict[str, float]:
    """Seconds by whose they were."""
    seconds, last = defaultdict[str, float](float), 0.0
    for event in events(ledger):
        took, last = max(0.0, event.elapsed - last), event.elapsed
        if isinstance(event, Proposal | Missed):
            model = min(took, event.spent.seconds)
            seconds["models"] += model
            took -= model
        seconds[_WHOSE.get(event.kind, "harness")] += took
    return dict(seconds)


def main() -> int:
    """Print the shares, and how long the prompt of the run's last state takes to build."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    ledger = Path(sys.argv[1]) / "ledger.jsonl"
    try:
        seconds = spent(ledger)
        state = fold(events(ledger))
    except (AtrexError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    whole = sum(seconds.values())
    for name, value in sorted(seconds.items(), key=lambda pair: -pair[1]):
        print(f"{name:9} {value:8.2f} s  {value / whole:6.2%}")
    started = time.perf_counter()
    text = situation(context.build(state, Knowledge()), 24_000)
    print(f"the last prompt: {len(text)} characters in {1e3 * (time.perf_counter() - started):.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())

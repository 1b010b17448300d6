"""Profiles and placed entries for tests of weights and reports, made as readers and rules make them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from traces.placed import UNPLACED, Placed, PlacedPhase
from traces.profile import DeviceTime, Entry, Gaps, Profile


@dataclass(frozen=True)
class Part:
    """Time of one target in a profile; ours if it has a case, or says why not."""

    target: str
    us: float
    phase: PlacedPhase = "unknown"
    input: Mapping[str, Any] = field(default_factory=dict)
    init: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    calls: int = 1
    kernel: str = ""
    device_us: float | None = None  # where launches overlap
    annotations: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        return bool(self.input or self.why)

    def within(self, *annotations: str) -> Part:
        """The same in these ranges."""
        return replace(self, annotations=annotations)


def norm(us: float, tokens: int, phase: PlacedPhase = "decode", hidden: int = 512, calls: int = 1) -> Part:
    """Time of rms_norm at a shape."""
    return Part(
        "rms_norm", us, phase, {"token_count": tokens, "hidden_size": hidden}, {"eps": 1e-6}, "", calls
    )


def made(
    file: str,
    parts: Sequence[Part],
    *,
    hardware: str = "NVIDIA H200",
    idle_us: float = 0.0,
    complaints: tuple[str, ...] = (),
) -> tuple[Profile, tuple[Placed, ...]]:
    """A profile of one device that holds these parts, and what rules say of it."""
    digest = hashlib.sha256(json.dumps([file, repr(parts)]).encode()).hexdigest()
    entries = [
        Entry(
            kernel=part.kernel or f"kernel_{number}",
            operator=f"op::{number}",
            launches=max(1, part.calls),
            device_us=part.us if part.device_us is None else part.device_us,
            busy_us=part.us,
            annotations=part.annotations,
        )
        for number, part in enumerate(parts)
    ]
    busy = sum(part.us for part in parts)
    gaps = (Gaps(least_us=1, count=3, total_us=idle_us),) if idle_us else ()
    device = DeviceTime(device=0, span_us=busy + idle_us, busy_us=busy, streams=1, gaps=gaps)
    profile = Profile(
        file=file, format="kineto", digest=digest, hardware=hardware, devices=(device,),
        entries=tuple(entries), complaints=complaints,
    )  # fmt: skip
    placed = [_placed(digest, part, entry) for part, entry in zip(parts, entries, strict=True)]
    return profile, tuple(placed)


def _placed(digest: str, part: Part, entry: Entry) -> Placed:
    return Placed(
        digest=digest,
        entry=entry,
        target=part.target,
        ours=part.ours,
        rule="" if part.target == UNPLACED else f"rule of {part.target}",
        phase=part.phase,
        init=dict(part.init),
        input=dict(part.input),
        why=part.why,
        calls=part.calls if part.ours else 0,
    )


Made = tuple[Profile, tuple[Placed, ...]]

"""One entry alone, placed: for tests of rules and of cases."""

from __future__ import annotations

import json
from typing import Any

from traces.classify import classify, load_rules
from traces.placed import Placed
from traces.profile import DeviceTime, Entry, Profile

RULES = load_rules()


def place(**fields: Any) -> Placed:
    """One entry alone, placed; shapes, dtypes and scalars as lists."""
    for name in ("shapes", "dtypes", "scalars"):
        if isinstance(fields.get(name), list):
            fields[name] = json.dumps(fields[name])
    if operator := fields.get("operator"):
        fields["stack"] = (*fields.get("stack", ()), operator)
    made = Entry(**({"kernel": "k", "launches": 1, "device_us": 1.0, "busy_us": 1.0} | fields))
    device = DeviceTime(device=0, span_us=1.0, busy_us=1.0, streams=1)
    whole = Profile(file="f", format="kineto", digest="0" * 64, devices=(device,), entries=(made,))
    (found,) = classify([whole], RULES)
    return found

"""The GPU's memory, which a judge, its workers and strangers share."""

from __future__ import annotations

import time

import torch

SHARE = 0.6  # that a worker may have; the rest is the judge's
_RELEASED = 2.0  # seconds in which the driver takes back what a dead process held


def give_back() -> None:
    """Let others have the memory that this process only keeps for later."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def crowded() -> str:
    """Whether others hold so much that a worker started now could not have its share; empty if it could.

    To be asked once the worker that ran out of memory has ended.
    """
    give_up = time.monotonic() + _RELEASED
    while True:
        give_back()
        free, total = torch.cuda.mem_get_info()
        share = int(SHARE * total)
        if free >= share:
            return ""
        if time.monotonic() > give_up:
            return f"of the {share >> 20} MiB that a worker may have, others leave {free >> 20} MiB"
        time.sleep(0.05)

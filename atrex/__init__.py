"""Atrex: an agent that optimises GPU kernels by production weight, and the instrument that judges them."""

import os

WORKER = "ATREX_WORKER"
"""In the environment of fork servers and their workers alone."""

# A judge waits for its worker most of the time. For some milliseconds after an operation its OpenMP threads
# would wait awake, on the cores that the worker needs now. libgomp reads this once, when torch loads it; a
# worker, whose kernels are timed, does without it whatever the judge has.
if WORKER not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "0")

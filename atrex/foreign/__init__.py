"""Kernels and references that nobody here wrote: a contract inferred from a reference, and its judging.

docs/foreign.md explains it. Foreign references are as untrusted as foreign kernels: `referee` runs them in a
sandboxed worker, `client` asks it from the judge, and only `entry` and `recipe` run in a candidate's worker.
"""

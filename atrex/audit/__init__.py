"""Audits of our own problems: what their production inputs would let through, and what catches it."""

"""Causal attention of packed sequences over a paged key and value cache."""

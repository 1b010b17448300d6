"""Attention within packed sequences of several lengths, without a mask."""

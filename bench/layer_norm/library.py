"""layer_norm as PyTorch has it: one fused kernel on a GPU, and what the reference calls too."""

from __future__ import annotations

from bench.layer_norm.reference import reference as library

__all__ = ["library"]

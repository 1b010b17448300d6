"""attention_forward as PyTorch has it: scaled_dot_product_attention, which the reference calls too."""

from __future__ import annotations

from bench.attention_forward.reference import reference as library

__all__ = ["library"]

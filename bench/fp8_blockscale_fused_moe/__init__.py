"""Mixture of gated feed-forward experts over FP8 operands with block scales."""

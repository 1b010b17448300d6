"""Matrix product of FP8 operands with block scales."""

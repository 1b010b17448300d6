"""per_token_group_quant_fp8: FP8 quantisation with one scale per row and group of columns."""

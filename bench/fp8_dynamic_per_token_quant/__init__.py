"""fp8_dynamic_per_token_quant: FP8 quantisation with one scale per row."""

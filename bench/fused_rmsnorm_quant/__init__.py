"""fused_rmsnorm_quant: residual addition, RMS normalisation and FP8 quantisation per row."""

"""Layer normalisation with weight and bias."""

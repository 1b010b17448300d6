"""Root-mean-square normalisation with a weight and an activated gate."""

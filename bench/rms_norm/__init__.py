"""Root-mean-square normalisation with a weight."""

"""Residual addition followed by root-mean-square normalisation with a weight."""

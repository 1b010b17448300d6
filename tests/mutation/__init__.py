"""Mutation engine: wrong variants of honest kernels, and whether the gates kill what is provably wrong."""

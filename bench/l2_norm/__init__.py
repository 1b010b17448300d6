"""Normalisation of rows to unit Euclidean length."""

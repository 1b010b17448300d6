"""Kernel languages: Triton on a GPU and in a checked CPU interpreter, and C++."""

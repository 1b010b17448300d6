"""The hunt for PyTorch fallbacks: who did the work of a candidate, read from its source or seen in a run."""

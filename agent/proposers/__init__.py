"""Where candidates come from: each module is one proposer, or a set of baselines."""

"""Mixture of gated feed-forward experts in bf16."""

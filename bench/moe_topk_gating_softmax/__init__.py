"""Softmax over experts and its largest entries, with expert groups."""

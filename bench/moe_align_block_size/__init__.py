"""Token indices sorted by expert, each expert padded to whole blocks."""

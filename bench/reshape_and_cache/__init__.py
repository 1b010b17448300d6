"""reshape_and_cache: keys and values written to their slots of a paged cache."""

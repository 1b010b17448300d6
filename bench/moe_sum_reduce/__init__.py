"""Sum of the outputs of a token's experts."""

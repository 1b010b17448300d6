"""Token indices sorted by expert, with counts and their prefix sums."""

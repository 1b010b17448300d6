"""One query per sequence over a paged cache whose keys are split into 16-byte pieces."""

"""Root-mean-square normalisation of the query and key heads of a packed projection."""

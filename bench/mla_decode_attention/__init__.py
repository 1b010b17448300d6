"""One query per sequence over a latent cache that all heads share."""

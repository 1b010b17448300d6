"""What the commands do; `atrex.cli` holds their options. Heavy imports stay out of the command line."""

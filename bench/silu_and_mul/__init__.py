"""SiLU of one half of each row times the other half."""

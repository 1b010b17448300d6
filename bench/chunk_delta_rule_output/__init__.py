"""chunk_delta_rule_output: the output pass of the chunked gated delta rule."""

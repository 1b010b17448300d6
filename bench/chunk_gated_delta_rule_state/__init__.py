"""chunk_gated_delta_rule_state: the state pass of the chunked gated delta rule."""

"""gated_delta_rule_update: the recurrent gated delta rule over a pool of states."""

"""From a measured candidate to what it loses time on: collectors, records, diagnosis."""

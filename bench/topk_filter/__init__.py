"""topk_filter: logits below the k-th largest of their row become -inf."""

"""fused_qkv_rope: split of packed q, k and v with rotary embedding of q and k."""

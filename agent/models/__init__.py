"""Language models behind one Protocol: `claude` and `gpt` over their SDKs, a cache on disk, and replay."""

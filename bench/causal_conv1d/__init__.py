"""causal_conv1d: a depthwise causal convolution over tokens with a carried state, and silu."""

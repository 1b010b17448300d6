"""The convolution without activation, which rounds to bf16, then the package's silu, which rounds again."""

import triton  # noqa: F401
from fla.modules.activations import ops as activations
from fla.modules.causal_conv1d import ops as package
from torch import Tensor, nn

KERNELS = (package.causal_conv1d_fwd_kernel, activations.swish_fwd_kernel)

DEFECTS = {"specials": "a tap is picked by a product with 0 or 1, so an infinite weight makes all taps NaN"}


class Model(nn.Module):
    def __init__(self, activation: str = "silu") -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, initial_state: Tensor) -> Tensor:
        weight, bias = weight.contiguous(), bias.contiguous()
        # Its state holds a token more than the convolution looks at: the oldest.
        state = x.new_zeros((1, *weight.shape))
        state[:, :, 1:].copy_(initial_state)
        rows = package.causal_conv1d_fwd(x.T[None], weight, bias, None, state)[0]
        out = rows[0].T.contiguous()
        return activations.swish_fwd(out) if self.activation == "silu" else out

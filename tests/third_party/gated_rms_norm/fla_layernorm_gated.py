"""Both orders of norm and gate, with silu: the kernel of Mamba 2's RMSNormGated."""

import torch
import triton  # noqa: F401
from fla.modules.norm import layernorm_gated as package
from torch import Tensor, nn

KERNELS = (package.layer_norm_fwd_kernel_group,)
MOST = {"hidden_size": 32768}  # it refuses rows of more than 64 KiB
INIT = {"activation": ["silu", "swish"]}


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6, norm_before_gate: bool = True, activation: str = "silu") -> None:
        super().__init__()
        if activation == "sigmoid":
            raise NotImplementedError("its gate is silu")
        self.eps, self.before = eps, norm_before_gate

    def forward(self, x: Tensor, z: Tensor, weight: Tensor) -> Tensor:
        # It asks for a last stride of 1 even where there is one column, which contiguous() leaves as it is.
        x, z, weight = (t.clone(memory_format=torch.contiguous_format) for t in (x, z, weight))
        options = {"norm_before_gate": self.before, "is_rms_norm": True}
        return package.layer_norm_fwd(x, weight, None, self.eps, z=z, **options)[0]

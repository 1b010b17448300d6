"""The norm first, then the gate: the kernels of FusedRMSNormGated."""

import triton  # noqa: F401
from fla.modules.norm import fused_norm_gate as package
from torch import Tensor, nn

KERNELS = (package.layer_norm_gated_fwd_kernel, package.layer_norm_gated_fwd_kernel_row)
MOST = {"hidden_size": 32768}  # it refuses rows of more than 64 KiB
INIT = {"norm_before_gate": [True]}


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6, norm_before_gate: bool = True, activation: str = "silu") -> None:
        super().__init__()
        if not norm_before_gate:
            raise NotImplementedError("norms before the gate only")
        self.eps, self.activation = eps, activation

    def forward(self, x: Tensor, z: Tensor, weight: Tensor) -> Tensor:
        x, z, weight = x.contiguous(), z.contiguous(), weight.contiguous()
        call = package.layer_norm_gated_fwd
        return call(x, z, weight, None, self.activation, self.eps, is_rms_norm=True)[0]

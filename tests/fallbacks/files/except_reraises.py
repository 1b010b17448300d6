import logging

import torch
import triton
import triton.language as tl
from torch import nn

log = logging.getLogger(__name__)


@triton.jit
def _row_norm(out, x, H, xs, eps, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, B)
    v = tl.load(x + row * xs + col, col < H, other=0.0).to(tl.float32)
    tl.store(out + row * H + col, (v * tl.rsqrt(tl.sum(v * v, axis=0) + eps)).to(tl.bfloat16), col < H)


class Model(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.busy = False

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, H = x.shape
        if not rows:
            return out
        self.busy = True
        try:
            _row_norm[(rows,)](out, x, H, H, self.eps, B=triton.next_power_of_2(H))
        except triton.CompilationError:
            log.exception("compilation failed for %d columns", H)
            raise
        except (RuntimeError, ValueError) as error:
            raise NotImplementedError(f"cannot launch on {tuple(x.shape)}") from error
        finally:
            self.busy = False
        return out

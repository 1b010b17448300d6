"""Whole heads, halves (neox) and sections one after another; it works in place, so on copies of q and k."""

import triton  # noqa: F401
from liger_kernel.ops import qwen2vl_mrope as package
from torch import Tensor, nn

KERNELS = (package._triton_qwen2vl_mrope,)
INIT = {"mrope_interleaved": [False], "is_neox_style": [True]}
WHERE = "rotary_dim == head_size"


class Model(nn.Module):
    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        mrope_section: tuple[int, int, int] = (16, 24, 24),
        mrope_interleaved: bool = False,
        is_neox_style: bool = True,
    ) -> None:
        super().__init__()
        if mrope_interleaved or not is_neox_style or rotary_dim != head_size:
            raise NotImplementedError("whole heads in halves with sections one after another only")
        self.size, self.sections = head_size, list(mrope_section)

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Tensor]:
        # [1, heads, tokens, size], of which it undoes the transposition.
        heads = [self._copied(t).transpose(1, 2) for t in (q, k)]
        turned = package.qwen2vl_mrope_forward(*heads, self._wide(cos), self._wide(sin), self.sections)
        new_q, new_k = (t.transpose(1, 2) for t in turned[:2])
        return {"q": new_q.reshape(q.shape), "k": new_k.reshape(k.shape)}

    def _copied(self, t: Tensor) -> Tensor:
        return t.contiguous().clone().view(1, t.shape[0], t.shape[1] // self.size, self.size)

    def _wide(self, table: Tensor) -> Tensor:
        """[3, 1, tokens, size] as it indexes a table; it reads the first half of a row."""
        wide = table.new_zeros((3, 1, table.shape[1], self.size))
        wide[:, 0, :, : table.shape[2]].copy_(table)
        return wide

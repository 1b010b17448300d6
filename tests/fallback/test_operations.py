"""Who did the work: classes of operations and of GPU kernels."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atrex.fallback.operations import classify_kernel, classify_op


class Names(TorchDispatchMode):
    """Records the operations that PyTorch really dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


class TestOperations:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("aten::empty.memory_format", "setup"),
            ("aten::as_strided", "setup"),
            ("aten::slice.Tensor", "setup"),
            ("aten::copy_", "glue"),
            ("aten::_to_copy", "glue"),
            ("aten::full", "glue"),
            ("aten::mul.Tensor", "compute"),
            ("aten::rsqrt_.default", "compute"),
            ("aten::rms_norm", "compute"),
            ("aten::_fused_rms_norm", "compute"),
            ("aten::empty_cache_of_results", "compute"),
            ("quantized::linear", "compute"),
            ("mylib::empty", "compute"),
            ("something new", "compute"),
            ("", "compute"),
        ],
    )
    def test_by_name(self, name: str, kind: str) -> None:
        assert classify_op(name) == kind

    def test_work_by_pytorch_is_compute(self) -> None:
        x, w = torch.ones(3, 8), torch.ones(8)
        with Names() as names:
            torch.nn.functional.rms_norm(x, (8,), w)
            _ = x @ x.T, x.softmax(-1), x.sum(), x.sort(), torch.where(x > 0, x, x), torch.cat([x, x])
        assert len({name for name in names.seen if classify_op(name) == "compute"}) >= 7

    def test_preparing_a_launch_is_not(self) -> None:
        x = torch.ones(3, 8)
        with Names() as names:
            out = torch.empty_like(x)
            _ = (
                x.view(-1),
                x.T,
                x[1:, ::2],
                x.unsqueeze(0),
                out.new_empty(3),
                x.reshape(2, 12),
                x.expand(3, 8),
            )
        assert names.seen
        assert {classify_op(name) for name in names.seen} == {"setup"}

    def test_moving_and_filling_is_glue(self) -> None:
        x = torch.ones(3, 8)
        with Names() as names:
            _ = x.T.contiguous(), torch.zeros(3), x.bfloat16(), x.clone(), x.fill_(2), x[0, 0].item()
        kinds = {classify_op(name) for name in names.seen}
        assert "compute" not in kinds
        assert "glue" in kinds


class TestKernels:
    @pytest.mark.parametrize(
        ("name", "origin"),
        [
            ("rms_rows", "own"),
            ("Memcpy DtoD (Device -> Device)", "glue"),
            ("Memset (Device)", "glue"),
            ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "glue"),
            ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "glue"),
            ("void at::native::reduce_kernel<512, 1, at::native::MeanOps<float>>", "library"),
            ("sm90_xmma_gemm_bf16bf16_bf16f32", "library"),
            ("rms_rows_2", "library"),
            ("void mine::rms_rows<float>(float*, int)", "own"),
            ("rms_rows(__nv_bfloat16*)", "own"),
            ("void at::native::mean<rms_rows>(float*)", "library"),
            ("", "library"),
        ],
    )
    def test_by_name(self, name: str, origin: str) -> None:
        assert classify_kernel(name, frozenset({"rms_rows"})) == origin

    def test_a_name_of_ones_own_wins(self) -> None:
        assert classify_kernel("memset_then_norm", frozenset({"memset_then_norm"})) == "own"

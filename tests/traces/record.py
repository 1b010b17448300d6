"""Record the traces of tests/traces/recorded: small random-weight models on a GPU, with torch's own profiler.

    python tests/traces/record.py --output $OUT                          # one GPU
    torchrun --nproc-per-node 2 tests/traces/record.py --output $OUT     # two ranks and their sums

Needs transformers, no dependency of Atrex. Each trace is NAME.json.gz, as the profiler exports it, and
beside it in NAME.totals.json what the profiler itself says of it (`key_averages`): a second reader's sums.

Steps are annotated as servers do it: vLLM's gpu_worker.py (`execute_context_1(512)_generation_0(0)`) on the
Llama, SGLang's (`step[EXTEND bs=1 toks=256]`) on the mixture of experts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import distributed, nn
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    StaticCache,
)

DTYPE = torch.bfloat16
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
Step = Callable[[], Any]


def llama(device: str) -> nn.Module:
    """A Llama of two layers."""
    config = LlamaConfig(intermediate_size=1536, attn_implementation="sdpa", **SIZES)
    return LlamaForCausalLM(config).to(device, DTYPE).eval()


def moe(device: str) -> nn.Module:
    """A Qwen3 mixture of experts of two layers, eight experts, two of them for each token."""
    config = Qwen3MoeConfig(
        intermediate_size=1024,
        moe_intermediate_size=256,
        num_experts=8,
        num_experts_per_tok=2,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm" if device != "cpu" else "eager",
        **SIZES,
    )
    return Qwen3MoeForCausalLM(config).to(device, DTYPE).eval()


def prefill(model: nn.Module, device: str, batch: int, tokens: int) -> Step:
    """One pass over prompts."""
    ids = torch.randint(0, SIZES["vocab_size"], (batch, tokens), device=device)
    return lambda: model(input_ids=ids, use_cache=True)


def decode(model: nn.Module, device: str, batch: int, context: int) -> Step:
    """One token for each sequence, after a prompt, with a static cache."""
    cache = StaticCache(config=model.config, max_cache_len=context + 64)
    ids = torch.randint(0, SIZES["vocab_size"], (batch, context), device=device)
    model(input_ids=ids, past_key_values=cache, use_cache=True)
    token = ids[:, :1].clone()
    place = torch.full((batch, 1), context, device=device, dtype=torch.long)
    return lambda: model(input_ids=token, position_ids=place, past_key_values=cache, use_cache=True)


def graphed(step: Step) -> Step:
    """The same step as a replayed CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def on_two_streams(device: str) -> Step:
    """Two products that overlap, then copies in both directions: what must not be counted twice."""
    a = torch.randn(4096, 1024, device=device, dtype=DTYPE)
    b = torch.randn(1024, 1024, device=device, dtype=DTYPE)
    host = torch.empty(4096, 1024, dtype=DTYPE, pin_memory=True)
    side = torch.cuda.Stream()

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.cuda.nvtx.range("side"):
            for _ in range(4):
                a @ b
        for _ in range(4):
            torch.softmax(a.float(), -1)
        torch.cuda.current_stream().wait_stream(side)
        host.copy_(a, non_blocking=True)
        a.copy_(host, non_blocking=True)

    return step


def own_kernels(device: str) -> Step:
    """Reference kernels of Atrex's knowledge base, as a server's own Triton kernels show."""
    from atrex.candidate import load_candidate
    from knowledge.item import ROOT

    def model(operator: str, name: str, **init: Any) -> nn.Module:
        source = load_candidate(ROOT / "kernels/triton" / operator / name, operator)
        path = Path("/tmp") / f"atrex_{operator}.py"  # Triton reads its kernels' sources from files
        path.write_text(source.source)
        space: dict[str, Any] = {"__name__": operator, "__file__": str(path)}
        exec(compile(path.read_text(), str(path), "exec"), space)
        return space["Model"](**init)

    norm = model("rms_norm", "row_tiles.py", eps=1e-6)
    gate = model("silu_and_mul", "row_tiles.py")
    x = torch.randn(512, 4096, device=device, dtype=DTYPE)
    weight = torch.ones(4096, device=device, dtype=DTYPE)

    def step() -> None:
        norm(x, weight)
        gate(x)

    return step


def with_sums(model: nn.Module) -> None:
    """Sum every block's output over the ranks, as tensor parallelism does."""
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            part.register_forward_hook(_summed)


def _summed(_module: nn.Module, _inputs: Any, output: Any) -> None:
    distributed.all_reduce(output[0] if isinstance(output, tuple) else output)


def record(name: str, step: Step, note: str, output: Path, steps: int = 3, **options: bool) -> None:
    """Profile some warm steps, and write the trace and the profiler's own sums."""
    began = time.monotonic()
    with torch.no_grad():
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], **options) as profiler:
            for _ in range(steps):
                with record_function(note):
                    step()
            torch.cuda.synchronize()
    plain = output / f"{name}.json"
    profiler.export_chrome_trace(str(plain))
    totals = [
        {
            "name": row.key,
            "device": str(row.device_type).rpartition(".")[2],
            "count": row.count,
            "self_device_us": row.self_device_time_total,
        }
        for row in profiler.key_averages()
    ]
    about = {
        "name": name,
        "options": options,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name(),
        "date": time.strftime("%Y-%m-%d"),
        "rows": totals,
    }
    (output / f"{name}.totals.json").write_text(json.dumps(about))
    data = plain.read_bytes()
    with (output / f"{name}.json.gz").open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(data)
    plain.unlink()
    size = (output / f"{name}.json.gz").stat().st_size
    seconds = time.monotonic() - began
    print(f"{name}: {len(data)} bytes, {size} packed, {len(totals)} rows, {seconds:.1f} s", flush=True)


def tried(name: str, make: Callable[[], Step], note: str, output: Path, **options: Any) -> None:
    """Record one; what cannot be made is said, and the others still are."""
    try:
        with torch.no_grad():
            step = make()
        record(name, step, note, output, **options)
    except Exception as error:  # noqa: BLE001 - the other traces are wanted all the same
        print(f"{name}: NOT RECORDED: {type(error).__name__}: {str(error)[:500]}", flush=True)


def one_gpu(output: Path) -> None:
    """Everything that one GPU can show."""
    dense, sparse, shapes = llama("cuda"), moe("cuda"), {"record_shapes": True}
    context, generation = "execute_context_1(512)_generation_0(0)", "execute_context_0(0)_generation_8(8)"
    extend, step = "step[EXTEND bs=1 toks=256]", "step[DECODE bs=8 toks=8]"
    tried("llama-prefill", lambda: prefill(dense, "cuda", 1, 512), context, output, **shapes)
    stacks = {"record_shapes": True, "with_stack": True}
    tried("llama-decode-stacks", lambda: decode(dense, "cuda", 8, 128), generation, output, steps=1, **stacks)
    tried("llama-decode", lambda: decode(dense, "cuda", 8, 128), generation, output, **shapes)
    tried("llama-decode-plain", lambda: decode(dense, "cuda", 8, 128), generation, output)
    tried("llama-decode-graph", lambda: graphed(decode(dense, "cuda", 8, 128)), generation, output, **shapes)
    tried("moe-prefill", lambda: prefill(sparse, "cuda", 1, 256), extend, output, **shapes)
    tried("moe-decode", lambda: decode(sparse, "cuda", 8, 128), step, output, **shapes)
    tried("moe-decode-graph", lambda: graphed(decode(sparse, "cuda", 8, 128)), step, output, **shapes)
    tried("two-streams", lambda: on_two_streams("cuda"), "overlap", output, **shapes)
    tried("own-kernels", lambda: own_kernels("cuda"), "execute_new_1_cached_0", output, **shapes)
    compiled = torch.compile(dense)
    tried("llama-prefill-inductor", lambda: prefill(compiled, "cuda", 1, 512), context, output, **shapes)


def two_ranks(output: Path) -> None:
    """Two ranks of one job, a trace each, with NCCL between."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    model = llama("cuda")
    with_sums(model)
    note = "execute_context_1(512)_generation_0(0)"
    tried(f"llama-tp2-rank{rank}", lambda: prefill(model, "cuda", 1, 512), note, output, record_shapes=True)
    distributed.destroy_process_group()


def main() -> None:
    """Record on one GPU, or as one rank of two under torchrun."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    two_ranks(output) if "LOCAL_RANK" in os.environ else one_gpu(output)


if __name__ == "__main__":
    main()

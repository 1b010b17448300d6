"""Honest work, which the sandbox must allow; runs inside a sandboxed worker."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

from atrex.channel import Channel


def ping(channel: Channel) -> str:
    return "pong"


def fill_buffer(channel: Channel, descriptor: int, byte: int) -> int:
    with mmap.mmap(descriptor, 0) as view:
        size = len(view)
        view[:] = bytes([byte]) * size
    return size


def shrink_buffer(channel: Channel, descriptor: int) -> None:
    os.ftruncate(descriptor, 0)


def matmul(channel: Channel) -> float:
    import torch

    torch.set_num_threads(2)
    a = torch.arange(512 * 512, dtype=torch.float64).view(512, 512) / 1e5
    return float((a @ torch.eye(512, dtype=torch.float64) - a).abs().max())


def compile_and_call(channel: Channel) -> int:
    Path("add.cpp").write_text('#include <vector>\nextern "C" int add(int a, int b) { return a + b; }\n')
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "add.cpp", "-o", "add.so"], check=True)
    return int(ctypes.CDLL(str(Path("add.so").resolve())).add(40, 2))


def cuda_matmul(channel: Channel) -> float:
    import torch

    a = torch.eye(256, device="cuda", dtype=torch.float64)
    return float((a @ a - a).abs().max())


def triton_add(channel: Channel, device: str = "cpu") -> list[float]:
    import torch
    from triton_kernel import add_one

    values = torch.arange(4, dtype=torch.float32, device=device)
    add_one[(1,)](values, 4, BLOCK=4)
    return values.tolist()


def keep_note(channel: Channel, text: str) -> None:
    Path("note").write_text(text)


def run_python(channel: Channel, code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def run_tool(channel: Channel, path: str) -> str:
    return subprocess.run([path], capture_output=True, text=True, check=True, timeout=10).stdout


def busy_child(channel: Channel, seconds: float) -> None:
    """Have a child spend processor time, and wait for its end."""
    child = os.fork()
    if child == 0:
        while time.process_time() < seconds:
            pass
        os._exit(0)
    os.waitpid(child, 0)

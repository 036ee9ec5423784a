"""How fast this machine multiplies, copies and moves, in the number types that a model could use."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from cenote.errors import LoadError
from cenote.explain.pieces import Linears, Work
from cenote.explain.timing import seconds

# the side of a square product: as large as the best rate needs, on a CPU no larger than its caches
GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
REPEATS = 5
COPY_BYTES = 256 * 1024**2
# the number types of linear layers, quantized ones included
OFFERED = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float32", "float16", "bfloat16", "fp8")}


def in_type(name: str, own: Linears) -> Linears:
    """Layers in another number type; quantized ones get the states that the model has."""
    if name in ("int8", "fp8"):
        return Linears(own.dtype, own.device, name)
    dtype: torch.dtype = getattr(torch, name)
    return Linears(dtype, own.device)


class Gemm:
    """A large square product by a linear layer of each number type, as models have it."""

    def __init__(self, own: Linears) -> None:
        device = own.device
        self.device, size = device, GEMM_SIZE[device.type]
        self.flops = 2.0 * size**3
        self.work: dict[str, Work] = {}
        for name in OFFERED[device.type]:
            linears = in_type(name, own)
            try:
                layer = linears.layer(size, size)
            except LoadError:
                continue  # not on this machine
            self.work[name] = _applied(layer, torch.randn(size, size, device=device).to(linears.dtype))

    def rate(self, name: str) -> float:
        """FLOP/s, the best of a few: what the machine can, not what somebody else left of it."""
        return self.flops / min(seconds(self.work[name], self.device) for _ in range(REPEATS))


def copies(device: torch.device) -> dict[str, Work]:
    """Copies of COPY_BYTES: where the model lives, and to and from there."""
    here = torch.ones(COPY_BYTES // 4, device=device)
    there = torch.empty_like(here)
    work: dict[str, Work] = {"copy": lambda: there.copy_(here)}
    if device.type == "cuda":
        host = torch.ones(COPY_BYTES // 4, pin_memory=True)
        work["to_device"] = lambda: there.copy_(host, non_blocking=True)
        work["from_device"] = lambda: host.copy_(there, non_blocking=True)
    return work


def usable_cores() -> int:
    """Those this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, frozenset[str]]:
    """Its name, and the names of what it can do."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    fields = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    name = fields.get("model name") or platform.processor() or platform.machine()
    return name, frozenset((fields.get("flags") or fields.get("Features") or "").split())


def _applied(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Work:
    def run() -> None:
        with torch.inference_mode():
            layer(x)

    return run

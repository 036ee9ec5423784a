"""How fast this machine multiplies, copies and moves, in the number types that a model could use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch

from cenote.config.engine import Quantization
from cenote.errors import LoadError
from cenote.explain.microbenchmarks import BenchmarkFn, LinearFactory
from cenote.explain.timing import time_call
from cenote.kernels.cpu_features import cpu_features

# the side of a square product: as large as the best rate needs, on a CPU no larger than its caches
GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
REPEATS = 5
COPY_BYTES = 256 * 1024**2
QUANTIZED_DTYPES: dict[str, Quantization] = {"int8": "int8", "fp8": "fp8"}


def iter_linear_dtypes(device_type: str) -> Iterator[str]:
    """The number types of linear layers, quantized ones included, that this machine has fast arithmetic for."""
    yield "float32"
    if device_type == "cuda":
        yield from ("float16", "bfloat16", "fp8")
        return
    cpu = cpu_features()
    if cpu.has_bfloat16:
        yield "bfloat16"
    if cpu.has_int8:
        yield "int8"


def with_dtype(name: str, own: LinearFactory) -> LinearFactory:
    """Layers in another number type; quantized ones get the states that the model has."""
    if (quantization := QUANTIZED_DTYPES.get(name)) is not None:
        return LinearFactory(own.dtype, own.device, quantization)
    dtype: torch.dtype = getattr(torch, name)
    return LinearFactory(dtype, own.device)


class GemmBenchmark:
    """A large square product by a linear layer of each number type, as models have it."""

    def __init__(self, own: LinearFactory) -> None:
        device = own.device
        self.device, size = device, GEMM_SIZE[device.type]
        self.flops = 2.0 * size**3
        self.benchmarks: dict[str, BenchmarkFn] = {}
        for name in iter_linear_dtypes(device.type):
            linears = with_dtype(name, own)
            try:
                layer = linears.make_layer(size, size)
            except LoadError:
                continue  # not on this machine
            self.benchmarks[name] = _bind_input(layer, torch.randn(size, size, device=device).to(linears.dtype))

    def rate(self, name: str) -> float:
        """FLOP/s, the best of a few: what the machine can, not what somebody else left of it."""
        return self.flops / min(time_call(self.benchmarks[name], self.device) for _ in range(REPEATS))


def make_copy_benchmarks(device: torch.device) -> dict[str, BenchmarkFn]:
    """Copies of COPY_BYTES: where the model lives, and to and from there."""
    here = torch.ones(COPY_BYTES // 4, device=device)
    there = torch.empty_like(here)
    work: dict[str, BenchmarkFn] = {"copy": lambda: there.copy_(here)}
    if device.type == "cuda":
        host = torch.ones(COPY_BYTES // 4, pin_memory=True)
        work["to_device"] = lambda: there.copy_(host, non_blocking=True)
        work["from_device"] = lambda: host.copy_(there, non_blocking=True)
    return work


def count_usable_cores() -> int:
    """Those this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bind_input(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> BenchmarkFn:
    def run() -> None:
        with torch.inference_mode():
            layer(x)

    return run

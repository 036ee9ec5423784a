"""Measure GEMM, memory and transfer rates of this machine, in the dtypes that a model could use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from cenote.config.engine import Quantization
from cenote.errors import LoadError
from cenote.explain.microbenchmarks import BenchmarkFn, LinearFactory
from cenote.explain.timing import time_call
from cenote.kernels.cpu.library import supports_format
from cenote.kernels.cpu_features import cpu_features
from cenote.kernels.fp8 import can_multiply_fp8

# size of a square GEMM: large enough for the peak rate, on a CPU small enough for its caches
GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
REPEATS = 5
COPY_BYTES = 256 * 1024**2
QUANTIZED_DTYPES: dict[str, Quantization] = {"int8": "int8", "fp8": "fp8"}


def iter_linear_dtypes(device_type: str) -> Iterator[str]:
    """Return the dtypes of linear layers, including quantized ones, that this machine supports natively."""
    yield "float32"
    if device_type == "cuda":
        yield from ("float16", "bfloat16", "fp8")
        return
    cpu = cpu_features()
    if cpu.has_bfloat16:
        yield "bfloat16"
    if not cpu.has_bfloat16 and supports_format("float16"):
        yield "float16"
    if cpu.has_int8 or supports_format("int8"):
        yield "int8"


def with_dtype(name: str, own: LinearFactory) -> LinearFactory:
    """Return a factory for layers in another dtype; quantized layers keep the dtype of the activations."""
    if (quantization := QUANTIZED_DTYPES.get(name)) is not None:
        return LinearFactory(own.dtype, own.device, quantization)
    if name == "float16" and own.device.type == "cpu":
        return LinearFactory(torch.float32, own.device, matmul_dtype=torch.float16)
    dtype: torch.dtype = getattr(torch, name)
    return LinearFactory(dtype, own.device, matmul_dtype=dtype)


class GemmBenchmark:
    """Time a large square linear layer in each dtype."""

    def __init__(self, own: LinearFactory) -> None:
        device = own.device
        self.device, size = device, GEMM_SIZE[device.type]
        self.flops = 2.0 * size**3
        self.benchmarks: dict[str, BenchmarkFn] = {}
        for name in iter_linear_dtypes(device.type):
            if name == "fp8" and not can_multiply_fp8(device):
                continue  # fp8 weights would be dequantized
            linears = with_dtype(name, own)
            try:
                layer = linears.make_layer(size, size)
            except LoadError:
                continue  # not supported on this machine
            self.benchmarks[name] = _bind_input(layer, torch.randn(size, size, device=device).to(linears.dtype))

    def rate(self, name: str) -> float:
        """Return FLOP/s, the best of a few runs, to exclude interference by other processes."""
        return self.flops / min(time_call(self.benchmarks[name], self.device) for _ in range(REPEATS))


def make_copy_benchmarks(device: torch.device) -> dict[str, BenchmarkFn]:
    """Time copies of COPY_BYTES on the device, to the device and from it."""
    here = torch.ones(COPY_BYTES // 4, device=device)
    there = torch.empty_like(here)
    work: dict[str, BenchmarkFn] = {"copy": lambda: there.copy_(here)}
    if device.type == "cuda":
        host = torch.ones(COPY_BYTES // 4, pin_memory=True)
        work["to_device"] = lambda: there.copy_(host, non_blocking=True)
        work["from_device"] = lambda: host.copy_(there, non_blocking=True)
    return work


def _bind_input(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> BenchmarkFn:
    def run() -> None:
        with torch.inference_mode():
            layer(x)

    return run

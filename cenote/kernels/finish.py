"""The last pass over a loaded module: its linear layers as the device computes them fastest, quantized if asked."""

from __future__ import annotations

import torch
from torch import nn

from cenote.errors import LoadError
from cenote.kernels.fp8 import to_fp8
from cenote.kernels.linear import prepack


def finish(module: nn.Module, device: torch.device, quantization: str | None) -> None:
    if quantization == "fp8" and device.type != "cuda":
        raise LoadError(f"quantization=fp8 needs a GPU, and this model runs on {device.type}; a CPU has int8")
    if quantization == "int8" and device.type != "cpu":
        raise LoadError(f"quantization=int8 is for CPUs, and this model runs on {device}; a GPU has fp8")
    if quantization == "fp8":
        to_fp8(module, device)
        return
    prepack(module, int8=quantization == "int8")

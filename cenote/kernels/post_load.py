"""Post-load pass over a module: prepack or quantize its linear layers for the device."""

from __future__ import annotations

import logging

import torch
from torch import nn

from cenote.config.engine import Quantization
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.kernels.cpu_features import CPUFeatures
from cenote.kernels.fp8 import quantize_to_fp8
from cenote.kernels.linear import prepack

logger = logging.getLogger("cenote")


def resolve_quantization(
    requested: Quantization | None, device: torch.device, cpu: CPUFeatures
) -> Sourced[Quantization | None]:
    """Return the quantization to use: the requested one, or None if this CPU has no fast int8 kernel."""
    if requested is None:
        return Sourced(None, "default")
    if requested == "fp8" and device.type != "cuda":
        raise LoadError(
            f"quantization=fp8 needs a GPU, but this model runs on {device.type}; use quantization=int8 on a CPU"
        )
    if requested == "int8" and device.type != "cpu":
        raise LoadError(
            f"quantization=int8 needs a CPU, but this model runs on {device}; use quantization=fp8 on a GPU"
        )
    if requested == "int8" and not cpu.has_int8:
        logger.warning("quantization=int8: this CPU has neither AMX nor AVX512-VNNI; computing without quantization")
        return Sourced(None, "quantization=int8, for which this CPU has no fast kernel")
    return Sourced(requested, "quantization")


def process_weights_after_loading(module: nn.Module, device: torch.device, quantization: Quantization | None) -> None:
    if quantization == "fp8":
        quantize_to_fp8(module, device)
        return
    prepack(module, int8=quantization == "int8")

"""Quantize a module while or after its weights are loaded, and prepack its linear layers."""

from __future__ import annotations

import logging

import torch
from torch import nn

from cenote.config.engine import Quantization
from cenote.kernels.cpu.library import Format
from cenote.kernels.cpu_features import cpu_features
from cenote.kernels.fp8 import Fp8Quantizer, can_multiply_fp8
from cenote.kernels.quantized_linear import WeightQuantizer, quantize_module
from cenote.layers.int8 import Int8Quantizer
from cenote.layers.pack_linears import pack_linears, prepack

logger = logging.getLogger("cenote")


def make_quantizer(
    quantization: Quantization | None, device: torch.device, *, is_required: bool = True
) -> WeightQuantizer | None:
    """Return the quantizer for the weights of this device; `is_required`: refuse a model without suitable layers."""
    if quantization == "fp8":
        if not (multiplies_fp8 := can_multiply_fp8(device)):
            logger.warning(
                "quantization=fp8: this GPU has compute capability %s.%s, and fp8 products need 8.9 (Ada, Hopper) and "
                "Triton; weights are stored in fp8 and dequantized for each batch, which saves memory but is slower",
                *torch.cuda.get_device_capability(device),
            )
        return Fp8Quantizer(multiplies_fp8=multiplies_fp8, is_required=is_required)
    return Int8Quantizer(multiplies_int8=cpu_features().has_int8) if quantization == "int8" else None


def process_weights_after_loading(
    module: nn.Module, device: torch.device, quantization: Quantization | None, matmul_dtype: torch.dtype | None = None
) -> None:
    """Quantize and prepack a module whose weights are loaded.

    `matmul_dtype` is that of float32 layers on a CPU; bfloat16: that of bfloat16 layers in the C kernels.
    """
    is_int8 = quantization == "int8" and not cpu_features().has_amx
    formats: dict[torch.dtype | None, Format] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
    format = "int8" if is_int8 else formats.get(matmul_dtype, "float32")
    if (quantization is None or is_int8) and pack_linears(module, format):
        return
    if (quantizer := make_quantizer(quantization, device)) is not None:
        quantize_module(module, quantizer)
    prepack(module)

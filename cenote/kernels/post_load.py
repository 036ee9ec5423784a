"""The quantization of a model on its device, and the pass over a loaded module that prepacks its linear layers."""

from __future__ import annotations

import logging

import torch
from torch import nn

from cenote.config.engine import Quantization
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.kernels.cpu.convert import pack_linears, supports_format
from cenote.kernels.cpu.library import Format
from cenote.kernels.cpu_features import CPUFeatures, cpu_features
from cenote.kernels.fp8 import Fp8Quantizer, can_multiply_fp8
from cenote.kernels.int8 import Int8Quantizer
from cenote.kernels.linear import prepack
from cenote.kernels.quantized_linear import WeightQuantizer, quantize_module

logger = logging.getLogger("cenote")


def resolve_quantization(
    requested: Quantization | None,
    device: torch.device,
    cpu: CPUFeatures,
    dtype: torch.dtype = torch.float32,
    *,
    stores_fp8: bool = False,
) -> Sourced[Quantization | None]:
    """Return the quantization to use; raise if the device does not support it.

    `stores_fp8`: the checkpoint is in fp8, and stays so on a GPU that computes with it.
    """
    if requested is None and stores_fp8 and device.type == "cuda" and can_multiply_fp8(device):
        return Sourced("fp8", "quantization_config of config.json")
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
    if requested == "int8" and not (cpu.has_int8 or packs_int8(dtype, cpu)):
        logger.warning(
            "quantization=int8: there is no fast int8 kernel for this CPU and dtype; weights are stored in int8 and "
            "dequantized for each batch, which saves memory but is slower"
        )
        return Sourced(requested, "quantization=int8, weights only: this CPU has no fast int8 kernel")
    return Sourced(requested, "quantization")


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


def packs_int8(dtype: torch.dtype, cpu: CPUFeatures) -> bool:
    """Return whether the C kernels of a CPU level quantize the layers after loading."""
    return dtype is torch.float32 and not cpu.has_amx and supports_format("int8")


def resolve_matmul_dtype(requested: str, dtype: torch.dtype, device: torch.device) -> Sourced[torch.dtype]:
    """Return the dtype in which linear layers multiply: float16 for float32 inputs, if this CPU can."""
    is_float32_on_cpu = device.type == "cpu" and dtype is torch.float32
    if not is_float32_on_cpu or requested not in ("auto", "float16", "half") or not supports_format("float16"):
        return Sourced(dtype, "dtype")
    if requested == "auto":
        return Sourced(torch.float16, "fp16 instructions of this CPU; float32 if its results differ, checked at load")
    return Sourced(torch.float16, "dtype")


def process_weights_after_loading(
    module: nn.Module, device: torch.device, quantization: Quantization | None, matmul_dtype: torch.dtype | None = None
) -> None:
    """Quantize and prepack a module whose weights are loaded.

    `matmul_dtype` is that of float32 layers on a CPU; bfloat16: that of bfloat16 layers in the C kernels.
    """
    is_int8 = quantization == "int8" and packs_int8(torch.float32, cpu_features())
    formats: dict[torch.dtype | None, Format] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
    format = "int8" if is_int8 else formats.get(matmul_dtype, "float32")
    if (quantization is None or is_int8) and pack_linears(module, format):
        return
    if (quantizer := make_quantizer(quantization, device)) is not None:
        quantize_module(module, quantizer)
    prepack(module)

"""Choose the formats of linear layers: their quantization, and the dtype that they multiply in."""

from __future__ import annotations

import logging

from cenote.config.device import Device
from cenote.config.engine import Quantization
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.kernels.cpu.library import supports_format
from cenote.kernels.cpu_features import CPUFeatures
from cenote.utils.dtypes import Dtype

logger = logging.getLogger("cenote")


def resolve_quantization(
    requested: Quantization | None,
    device: Device,
    cpu: CPUFeatures,
    dtype: Dtype = "float32",
    *,
    stores_fp8: bool = False,
) -> Sourced[Quantization | None]:
    """Return the quantization to use; raise if the device does not support it.

    `stores_fp8`: the checkpoint is in fp8, and stays so on a GPU that computes with it.
    """
    if requested is None and stores_fp8 and device.type == "cuda" and _can_multiply_fp8(device):
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


def _can_multiply_fp8(device: Device) -> bool:
    # torch is imported for a GPU only
    from cenote.kernels.fp8 import can_multiply_fp8
    from cenote.layers.torch_dtypes import to_torch_device

    return can_multiply_fp8(to_torch_device(device))


def packs_int8(dtype: Dtype, cpu: CPUFeatures) -> bool:
    """Return whether the C kernels of a CPU level quantize the layers after loading."""
    return dtype == "float32" and not cpu.has_amx and supports_format("int8")


def resolve_matmul_dtype(requested: str, dtype: Dtype, device: Device) -> Sourced[Dtype]:
    """Return the dtype in which linear layers multiply: float16 for float32 inputs, if this CPU can."""
    is_float32_on_cpu = device.type == "cpu" and dtype == "float32"
    if not is_float32_on_cpu or requested not in ("auto", "float16", "half") or not supports_format("float16"):
        return Sourced(dtype, "dtype")
    if requested == "auto":
        return Sourced("float16", "fp16 instructions of this CPU; float32 if its results differ, checked at load")
    return Sourced("float16", "dtype")

"""Passes that replace the linear layers of a module by packed or prepacked ones."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from cenote.kernels.cpu.library import Format, supports_format, unquantized_format
from cenote.kernels.cpu.quantize import absolute_max, smooth_scales
from cenote.kernels.linear import ONEDNN_ACTIVATIONS, PrepackedLinear, can_prepack_bfloat16
from cenote.kernels.smoothquant import record_input_max
from cenote.layers import packed_linear
from cenote.layers.packed_linear import pack_linear
from cenote.layers.torch_dtypes import to_array
from cenote.utils.arrays import Array


def pack_linears(module: nn.Module, format: Format, *, unquantized: Collection[nn.Module] = ()) -> bool:
    """Replace the linear layers of a module, if there is a kernel of this format for all; return whether there is.

    Weights are float32, or bfloat16 for that format.
    """
    linears = list_linears(module)
    if not supports_format(format) or not all(packed_linear.has_packable_weight(x, format) for _, _, x in linears):
        return False
    scales_by_layer = _compute_smooth_scales(module) if format == "int8" else {}
    packed: dict[object, nn.Module] = {}  # layers that share weights share the packed layer
    while linears:  # without a reference in the list, a weight is freed as soon as it is packed
        parent, name, linear = linears.pop()
        activation = getattr(linear, "activation", None)
        own: Format = unquantized_format() if linear in unquantized else format
        key = (linear.weight.data_ptr(), linear.weight.shape, activation, own)
        if key not in packed:
            scales = scales_by_layer.get(linear) if own == "int8" else None
            is_supported = packed_linear.supports(linear, activation, own)
            packed[key] = pack_linear(linear, activation, own, scales) if is_supported else linear
        setattr(parent, name, packed[key])
    return True


def _compute_smooth_scales(module: nn.Module) -> dict[nn.Module, Array]:
    # only layers with more outputs than inputs: they read normalized states with stable outlier channels
    widening = [linear for _, _, linear in list_linears(module) if linear.out_features > linear.in_features]
    return {
        layer: smooth_scales(absolute_max([to_array(layer.weight)]), to_array(maxima))
        for layer, maxima in (record_input_max(module, widening) if widening else {}).items()
        if isinstance(layer, nn.Linear)
    }


def list_linears(module: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Return the linear layers of a module with their parents and names."""
    return [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]


def prepack(module: nn.Module) -> None:
    """Replace the bfloat16 linear layers of a module on a CPU by prepacked ones."""
    _prepack(module, {})


def _prepack(module: nn.Module, packed: dict[object, nn.Module]) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            activation = getattr(child, "activation", None)
            # layers that share weights share the packed layer
            key = (child.weight.data_ptr(), child.weight.shape, activation)
            if key not in packed:
                packed[key] = _prepack_linear(child, activation)
            setattr(module, name, packed[key])
        else:
            _prepack(child, packed)


def _prepack_linear(linear: nn.Linear, activation: str | None) -> nn.Module:
    weight = linear.weight
    level = packed_linear.find_amx_level(linear.in_features, weight.dtype, weight.device, activation, "bfloat16")
    if level is not None:
        return pack_linear(linear, activation, "bfloat16", level=level)
    is_bf16_on_cpu = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    can_prepack = is_bf16_on_cpu and activation in ONEDNN_ACTIVATIONS and can_prepack_bfloat16()
    return PrepackedLinear(linear, activation) if can_prepack else linear

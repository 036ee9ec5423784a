"""Pass that replaces the linear layers of a module by packed ones."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from cenote.kernels.cpu import packed_linear
from cenote.kernels.cpu.library import Format, supports_format
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.kernels.smoothquant import record_input_max, smooth_scales


def unquantized_format() -> Format:
    """Return the format of layers that are not quantized to int8 in a quantized model."""
    return "float16" if supports_format("float16") else "float32"


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
            packed[key] = PackedLinear(linear, activation, own, scales) if is_supported else linear
        setattr(parent, name, packed[key])
    return True


def _compute_smooth_scales(module: nn.Module) -> dict[nn.Module, Tensor]:
    # only layers with more outputs than inputs: they read normalized states with stable outlier channels
    widening = [linear for _, _, linear in list_linears(module) if linear.out_features > linear.in_features]
    return {
        layer: smooth_scales(layer.weight.detach().float().abs().amax(dim=0), maxima)
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

"""Linear layers in fp8 (e4m3) with per-row scales, and the quantizer that makes them while weights are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.kernels.gpu.triton_support import FP8_MAX, is_triton_available
from cenote.kernels.quantized_linear import (
    QuantizedLinear,
    QuantizedTensors,
    ReadPieces,
    WeightOnlyLinear,
    quantize_pieces,
)

if TYPE_CHECKING:
    from cenote.kernels.gpu.fp8_quantize import QuantizedRows

FP8_ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")
# candidate scales of a weight row, as multiples of the smallest one: an octave, since twice a scale rounds alike
SCALE_FACTORS = (
    *(2 ** (step / 16) for step in range(16)),
    # with these, rows that have been quantized to fp8 keep their values, whatever the mantissa of their maximum
    *(ratio if (ratio := 1.75 / (1 + eighths / 8)) >= 1 else 2 * ratio for eighths in (0, 1, 2, 3, 4, 5, 7)),
)
MIN_OUT_FEATURES = 4096


class Fp8Linear(QuantizedLinear):
    """y = activation(x W' + b); with an activation, y is returned in fp8 for the next layer."""

    def __init__(self, linear: nn.Linear, weight: QuantizedTensors, dtype: torch.dtype) -> None:
        super().__init__(linear, dtype)
        self.weight = weight.values
        self.scales = weight.scales[None]  # [1, outputs]
        self.bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def forward(self, x: Tensor | QuantizedRows) -> Tensor | QuantizedRows:
        from cenote.kernels.gpu.activations import activate_fp8

        values, scales = _quantized_rows(x)
        out: Tensor = torch._scaled_mm(
            values, self.weight.t(), scales, self.scales, bias=self.bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return out.to(self.dtype) if self.activation is None else activate_fp8(out, self.activation)


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize [outputs, inputs] to fp8; return values and the scales [outputs] with the smallest squared error."""
    exact = weight.float()
    min_scale = exact.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / FP8_MAX
    best = min_scale
    min_error = torch.full_like(min_scale, torch.inf)
    for factor in SCALE_FACTORS:
        scales = min_scale * factor
        error = ((exact / scales).to(torch.float8_e4m3fn).float() * scales - exact).square().sum(dim=1, keepdim=True)
        best, min_error = torch.where(error < min_error, scales, best), torch.minimum(error, min_error)
    return (exact / best).to(torch.float8_e4m3fn), best[:, 0]


def _quantized_rows(x: Tensor | QuantizedRows) -> tuple[Tensor, Tensor]:
    """Return values and scales: those that the previous norm or layer has computed, or computed now."""
    if not isinstance(x, Tensor):
        return x
    if (rows := getattr(x, "fp8", None)) is not None:
        return rows  # type: ignore[no-any-return]
    from cenote.kernels.gpu.activations import activate_fp8

    return activate_fp8(x, None)


def can_multiply_fp8(device: torch.device) -> bool:
    """Return whether the GPU multiplies fp8 (compute capability 8.9 and above: Ada, Hopper) and Triton works."""
    return torch.cuda.get_device_capability(device) >= (8, 9) and is_triton_available(device.index or 0)


class Fp8Quantizer:
    """Quantizes the projections of attention and MLP of every block but the last.

    The last block stays because no later block corrects its errors. Output projections are quantized in wide models
    only: quantizing the attention output needs an extra pass, which costs as much as a small layer gains.
    """

    def __init__(self, *, multiplies_fp8: bool, is_required: bool = True) -> None:
        self.multiplies_fp8 = multiplies_fp8  # False: weights are dequantized for each batch
        self.is_required = is_required
        self._num_replaced = 0

    def select(self, module: nn.Module) -> dict[str, nn.Linear]:
        selected: dict[str, nn.Linear] = {}
        excluded = _last_block_modules(module)
        for path, parent in module.named_modules():
            if parent not in excluded:
                selected |= {f"{path}.{name}".lstrip("."): child for name, child in _select_children(parent).items()}
        return selected

    def quantize(self, linear: nn.Linear, read: ReadPieces, device: torch.device, dtype: torch.dtype) -> nn.Module:
        self._num_replaced += 1
        weight = quantize_pieces(read(), quantize_weight, torch.float8_e4m3fn, device)
        return (Fp8Linear if self.multiplies_fp8 else WeightOnlyLinear)(linear, weight, dtype)

    def finish(self, module: nn.Module) -> None:
        if not self._num_replaced and self.is_required:
            raise LoadError(
                "quantization=fp8: this model has no linear layer that supports fp8 (sizes must be multiples of 16)"
            )
        if not self.multiplies_fp8 or not self._num_replaced:
            return
        excluded = _last_block_modules(module)
        for path, child in module.named_modules():
            is_input_norm = path.endswith(("mixer_norm", "mlp_norm", "embed.norm")) and child not in excluded
            if is_input_norm and hasattr(child, "output_fp8"):
                child.output_fp8 = True


def _select_children(parent: nn.Module) -> dict[str, nn.Linear]:
    """Return the layers of one module that support fp8, by name; an MLP in fp8 needs both layers."""
    candidates = {name: _supported_linear(parent, name) for name in ("qkv", "up", "down", "out")}
    found = {name: child for name, child in candidates.items() if child is not None}
    activation = getattr(found.get("up"), "activation", None)
    if not {"up", "down"} <= found.keys() or activation not in (None, *FP8_ACTIVATIONS):
        found.pop("up", None)
        found.pop("down", None)
    if "out" in found and ("qkv" not in found or found["out"].in_features < MIN_OUT_FEATURES):
        del found["out"]
    return found


def _last_block_modules(module: nn.Module) -> set[nn.Module]:
    """Return all modules of the last block, or an empty set if there is only one block."""
    stacks = [child for path, child in module.named_modules() if path.split(".")[-1] == "layers"]
    return {part for stack in stacks if len(blocks := list(stack.children())) > 1 for part in blocks[-1].modules()}


def _supported_linear(parent: nn.Module, name: str) -> nn.Linear | None:
    child = getattr(parent, name, None)
    is_supported = isinstance(child, nn.Linear) and child.in_features % 16 == 0 and child.out_features % 16 == 0
    return child if is_supported else None

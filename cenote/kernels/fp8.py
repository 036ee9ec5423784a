"""Linear layers in fp8 (e4m3) with per-row scales, and the pass that replaces linear layers of a module by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.kernels.gpu.triton_support import FP8_MAX, is_triton_available

if TYPE_CHECKING:
    from cenote.kernels.gpu.fp8_quantize import QuantizedRows

FP8_ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")
NUM_SCALES = 16  # candidate scales per weight row


class Fp8Linear(nn.Module):
    """y = activation(x W' + b); with an activation, y is returned in fp8 for the next layer."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.dtype = linear.weight.dtype
        self.activation = activation
        self.weight, scales = quantize_weight(linear.weight.detach())
        self.scales = scales.T.contiguous()
        self.bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def forward(self, x: Tensor | QuantizedRows) -> Tensor | QuantizedRows:
        from cenote.kernels.gpu.activations import activate_fp8

        values, scales = _quantized_rows(x)
        out: Tensor = torch._scaled_mm(
            values, self.weight.t(), scales, self.scales, bias=self.bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return out.to(self.dtype) if self.activation is None else activate_fp8(out, self.activation)


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize [outputs, inputs] to fp8; return values and scales [outputs, 1] with the smallest squared error."""
    exact = weight.float()
    min_scale = exact.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / FP8_MAX
    best = min_scale
    min_error = torch.full_like(min_scale, torch.inf)
    for step in range(NUM_SCALES):  # one octave: multiplying a scale by two gives the same rounding
        scales = min_scale * 2 ** (step / NUM_SCALES)
        error = ((exact / scales).to(torch.float8_e4m3fn).float() * scales - exact).square().sum(dim=1, keepdim=True)
        best, min_error = torch.where(error < min_error, scales, best), torch.minimum(error, min_error)
    return (exact / best).to(torch.float8_e4m3fn), best


def _quantized_rows(x: Tensor | QuantizedRows) -> tuple[Tensor, Tensor]:
    """Return values and scales: those that the previous norm or layer has computed, or computed now."""
    if not isinstance(x, Tensor):
        return x
    if (rows := getattr(x, "fp8", None)) is not None:
        return rows  # type: ignore[no-any-return]
    from cenote.kernels.gpu.activations import activate_fp8

    return activate_fp8(x, None)


def quantize_to_fp8(module: nn.Module, device: torch.device) -> None:
    """Replace the QKV projections and both MLP projections of every block but the last by fp8 layers.

    The output projection stays: quantizing the attention output needs an extra pass, which costs as much as the small
    layer gains. The last block stays because no later block corrects its errors.
    """
    if (capability := torch.cuda.get_device_capability(device)) < (8, 9):
        version = ".".join(map(str, capability))
        raise LoadError(f"quantization=fp8 needs compute capability 8.9 (Ada, Hopper) or newer; this GPU has {version}")
    if not is_triton_available(device.index or 0):
        raise LoadError("quantization=fp8 needs Triton kernels, which cannot be compiled on this machine")
    replaced = 0
    excluded = _last_block_modules(module)
    for parent in list(module.modules()):
        if parent in excluded:
            continue
        up, down = _supported_linear(parent, "up"), _supported_linear(parent, "down")
        if up is not None and down is not None:
            activation = getattr(up, "activation", None)
            if activation is None or activation in FP8_ACTIVATIONS:
                parent.up, parent.down = Fp8Linear(up, activation), Fp8Linear(down)
                replaced += 2
        if (qkv := _supported_linear(parent, "qkv")) is not None:
            parent.qkv = Fp8Linear(qkv)
            replaced += 1
    if not replaced:
        raise LoadError(
            "quantization=fp8: this model has no linear layer that supports fp8 (sizes must be multiples of 16)"
        )
    for path, child in module.named_modules():
        is_input_norm = path.endswith(("mixer_norm", "mlp_norm", "embed.norm")) and child not in excluded
        if is_input_norm and hasattr(child, "output_fp8"):
            child.output_fp8 = True


def _last_block_modules(module: nn.Module) -> set[nn.Module]:
    """Return all modules of the last block, or an empty set if there is only one block."""
    stacks = [child for path, child in module.named_modules() if path.split(".")[-1] == "layers"]
    return {part for stack in stacks if len(blocks := list(stack.children())) > 1 for part in blocks[-1].modules()}


def _supported_linear(parent: nn.Module, name: str) -> nn.Linear | None:
    child = getattr(parent, name, None)
    is_supported = isinstance(child, nn.Linear) and child.in_features % 16 == 0 and child.out_features % 16 == 0
    return child if is_supported else None

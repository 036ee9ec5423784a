"""Linear layers in fp8, with a scale for every row that comes in and every row of the weight; a pass over a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.kernels.gpu.triton_support import is_triton_available

if TYPE_CHECKING:
    from cenote.kernels.gpu.fp8_quantize import QuantizedRows

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max
FP8_ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")
NUM_SCALES = 16


class Fp8Linear(nn.Module):
    """y = activation(x W' + b); where another such layer follows, y is handed to it as fp8."""

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
    """[outputs, inputs] -> the same in fp8, and [outputs, 1] to multiply it with: the scale that loses least."""
    wide = weight.float()
    widest = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / FP8_MAX
    best = widest
    least = torch.full_like(widest, torch.inf)
    for step in range(NUM_SCALES):  # from one power of two to the next, after which the same comes again
        scales = widest * 2 ** (step / NUM_SCALES)
        error = ((wide / scales).to(torch.float8_e4m3fn).float() * scales - wide).square().sum(dim=1, keepdim=True)
        best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
    return (wide / best).to(torch.float8_e4m3fn), best


def _quantized_rows(x: Tensor | QuantizedRows) -> tuple[Tensor, Tensor]:
    """What a norm or a layer before made already, or made now."""
    if not isinstance(x, Tensor):
        return x
    if (made := getattr(x, "fp8", None)) is not None:
        return made  # type: ignore[no-any-return]
    from cenote.kernels.gpu.activations import activate_fp8

    return activate_fp8(x, None)


def quantize_to_fp8(module: nn.Module, device: torch.device) -> None:
    """Replace the projections into attention and both halves of every feed-forward layer but the last.

    What attention gives would have to be made fp8 by a pass of its own, which costs what the small layer behind it
    would gain: that one stays as it is. So does the last block, whose errors no later one evens out.
    """
    if (capability := torch.cuda.get_device_capability(device)) < (8, 9):
        found = ".".join(map(str, capability))
        raise LoadError(f"quantization=fp8 needs compute capability 8.9 (Ada, Hopper) or newer; this GPU has {found}")
    if not is_triton_available(device.index or 0):
        raise LoadError("quantization=fp8 needs our GPU kernels, and those cannot be compiled here")
    replaced = 0
    kept = _last_block_modules(module)
    for parent in list(module.modules()):
        if parent in kept:
            continue
        up, down = _supported_linear(parent, "up"), _supported_linear(parent, "down")
        if up is not None and down is not None:
            activation = getattr(up, "activation", None)
            if activation is None or activation in FP8_ACTIVATIONS:
                parent.up, parent.down = Fp8Linear(up, activation), Fp8Linear(down)
                replaced += 2
        if (projections := _supported_linear(parent, "qkv")) is not None:
            parent.qkv = Fp8Linear(projections)
            replaced += 1
    if not replaced:
        raise LoadError("quantization=fp8: this model has no layers that can be computed so")
    for path, child in module.named_modules():
        feeds = path.endswith(("mixer_norm", "mlp_norm", "embed.norm")) and child not in kept
        if feeds and hasattr(child, "output_fp8"):
            child.output_fp8 = True


def _last_block_modules(module: nn.Module) -> set[nn.Module]:
    """Every module in it, where there are several blocks."""
    stacks = [child for path, child in module.named_modules() if path.split(".")[-1] == "layers"]
    return {part for stack in stacks if len(blocks := list(stack.children())) > 1 for part in blocks[-1].modules()}


def _supported_linear(parent: nn.Module, name: str) -> nn.Linear | None:
    child = getattr(parent, name, None)
    fits = isinstance(child, nn.Linear) and child.in_features % 16 == 0 and child.out_features % 16 == 0
    return child if fits else None

"""Linear layers in fp8, with a scale for every row that comes in and every row of the weight; a pass over a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.kernels.gpu.triton_support import available

if TYPE_CHECKING:
    from cenote.kernels.gpu.fp8_quantize import Quantized

LARGEST = torch.finfo(torch.float8_e4m3fn).max
ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")
SCALES = 16


class Fp8Linear(nn.Module):
    """y = activation(x W' + b); where another such layer follows, y is handed to it as fp8."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.dtype = linear.weight.dtype
        self.activation = activation
        self.weight, scales = quantized_weight(linear.weight.detach())
        self.scales = scales.T.contiguous()
        self.bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def forward(self, x: Tensor | Quantized) -> Tensor | Quantized:
        from cenote.kernels.gpu.activations import activated_fp8

        values, scales = _rows(x)
        out: Tensor = torch._scaled_mm(
            values, self.weight.t(), scales, self.scales, bias=self.bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return out.to(self.dtype) if self.activation is None else activated_fp8(out, self.activation)


def quantized_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[outputs, inputs] -> the same in fp8, and [outputs, 1] to multiply it with: the scale that loses least."""
    wide = weight.float()
    widest = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / LARGEST
    best = widest
    least = torch.full_like(widest, torch.inf)
    for step in range(SCALES):  # from one power of two to the next, after which the same comes again
        scales = widest * 2 ** (step / SCALES)
        error = ((wide / scales).to(torch.float8_e4m3fn).float() * scales - wide).square().sum(dim=1, keepdim=True)
        best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
    return (wide / best).to(torch.float8_e4m3fn), best


def _rows(x: Tensor | Quantized) -> tuple[Tensor, Tensor]:
    """What a norm or a layer before made already, or made now."""
    if not isinstance(x, Tensor):
        return x
    if (made := getattr(x, "fp8", None)) is not None:
        return made  # type: ignore[no-any-return]
    from cenote.kernels.gpu.activations import activated_fp8

    return activated_fp8(x, None)


def to_fp8(module: nn.Module, device: torch.device) -> None:
    """Replace the projections into attention and both halves of every feed-forward layer but the last.

    What attention gives would have to be made fp8 by a pass of its own, which costs what the small layer behind it
    would gain: that one stays as it is. So does the last block, whose errors no later one evens out.
    """
    if (capability := torch.cuda.get_device_capability(device)) < (8, 9):
        found = ".".join(map(str, capability))
        raise LoadError(f"quantization=fp8 needs compute capability 8.9 (Ada, Hopper) or newer; this GPU has {found}")
    if not available(device.index or 0):
        raise LoadError("quantization=fp8 needs our GPU kernels, and those cannot be compiled here")
    replaced = 0
    kept = _last_block(module)
    for parent in list(module.modules()):
        if parent in kept:
            continue
        up, down = _linear(parent, "up"), _linear(parent, "down")
        if up is not None and down is not None:
            activation = getattr(up, "activation", None)
            if activation is None or activation in ACTIVATIONS:
                parent.up, parent.down = Fp8Linear(up, activation), Fp8Linear(down)
                replaced += 2
        if (projections := _linear(parent, "qkv")) is not None:
            parent.qkv = Fp8Linear(projections)
            replaced += 1
    if not replaced:
        raise LoadError("quantization=fp8: this model has no layers that can be computed so")
    for path, child in module.named_modules():
        feeds = path.endswith(("mixer_norm", "mlp_norm", "embed.norm")) and child not in kept
        if feeds and hasattr(child, "wants_fp8"):
            child.wants_fp8 = True


def _last_block(module: nn.Module) -> set[nn.Module]:
    """Every module in it, where there are several blocks."""
    stacks = [child for path, child in module.named_modules() if path.split(".")[-1] == "layers"]
    return {part for stack in stacks if len(blocks := list(stack.children())) > 1 for part in blocks[-1].modules()}


def _linear(parent: nn.Module, name: str) -> nn.Linear | None:
    child = getattr(parent, name, None)
    fits = isinstance(child, nn.Linear) and child.in_features % 16 == 0 and child.out_features % 16 == 0
    return child if fits else None

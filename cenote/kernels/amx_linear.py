"""Linear layers on the matrix tiles of recent x86 processors, bfloat16 or int8, with bias and activation fused in."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from cenote.kernels import native_library

PANEL = 32  # outputs that are packed together
STEP_BYTES = 64  # of inputs that meet a tile at once


def supports(linear: nn.Linear, activation: str | None, *, int8: bool = False) -> bool:
    width = linear.in_features * (1 if int8 else 2)
    known = activation in native_library.ACTIVATION_CODES and width % STEP_BYTES == 0
    on_cpu = linear.weight.device.type == "cpu" and linear.weight.dtype == torch.bfloat16
    return known and on_cpu and native_library.is_available()


class AMXLinear(nn.Module):
    """y = activation(x W' + b), summed in float32; as int8, W by its outputs and x by its rows, evened out before."""

    def __init__(
        self, linear: nn.Linear, activation: str | None, *, int8: bool = False, smooth_scales: Tensor | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.activation = activation
        weight, scales = linear.weight.detach().contiguous(), None
        if int8:
            weight, scales = quantize_int8(weight if smooth_scales is None else weight.float() / smooth_scales)
        row_bytes = weight.shape[1] * weight.element_size()
        # kept here and not as parameters: they cannot be moved or saved
        self.tiles = torch.empty(-(-self.out_features // PANEL) * PANEL * row_bytes, dtype=torch.uint8)
        native_library.load_library().cenote_pack_weights(
            weight.data_ptr(), self.out_features, row_bytes, self.tiles.data_ptr()
        )
        self.bias = _pad_to_panels(linear.bias, self.out_features)
        self.scales = None if scales is None else _pad_to_panels(scales, self.out_features)
        self.smooth_scales = None if smooth_scales is None else _deinterleave_pairs(smooth_scales)
        self.descriptor = native_library.Linear(
            tiles=self.tiles.data_ptr(),
            bias=self.bias.data_ptr(),
            scales=None if self.scales is None else self.scales.data_ptr(),
            smooth_scales=None if self.smooth_scales is None else self.smooth_scales.data_ptr(),
            inputs=self.in_features,
            outputs=self.out_features,
            activation=native_library.ACTIVATION_CODES.index(activation),
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.contiguous()
        out = torch.empty((*x.shape[:-1], self.out_features), dtype=torch.bfloat16)
        failed = native_library.load_library().cenote_linear(
            ctypes.byref(self.descriptor),
            rows.data_ptr(),
            rows.numel() // self.in_features,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory for a linear layer over {tuple(x.shape)}")
        return out


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[outputs, inputs] -> the same as int8, and what a unit is worth in each row."""
    scales = weight.float().abs().amax(dim=1) / 127
    inverse = torch.where(scales > 0, 1 / scales, 0)  # a row of zeros stays one
    return (weight.float() * inverse[:, None]).round().to(torch.int8), scales


def _deinterleave_pairs(values: Tensor) -> Tensor:
    """In every 32 numbers those in even places before the others: so they come out of pairs of bfloat16."""
    return values.float().view(-1, 16, 2).transpose(1, 2).contiguous().flatten()


def _pad_to_panels(values: Tensor | None, count: int) -> Tensor:
    """As float32, zeros where there is nothing."""
    out = torch.zeros(-(-count // PANEL) * PANEL)
    if values is not None:
        out[:count] = values.detach()
    return out

"""Linear layers with Intel AMX in bfloat16 or int8, with fused bias and activation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from cenote.kernels import native_library

PANEL = 32  # outputs that are packed together; as in native.h
STEP_BYTES = 64  # bytes of an input row that a tile holds


def supports(linear: nn.Linear, activation: str | None, *, int8: bool = False) -> bool:
    """Return whether the native code is available and supports this layer."""
    row_bytes = linear.in_features * (1 if int8 else 2)
    has_kernel = activation in native_library.ACTIVATION_CODES and row_bytes % STEP_BYTES == 0
    is_bf16_on_cpu = linear.weight.device.type == "cpu" and linear.weight.dtype == torch.bfloat16
    return has_kernel and is_bf16_on_cpu and native_library.is_available()


class AMXLinear(nn.Module):
    """y = activation(x W' + b), accumulated in float32.

    With int8, W has one scale per output and x one per row, after the SmoothQuant scales are applied.
    """

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
        # not a parameter: the packed layout must not be moved to another device or saved
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
            raise MemoryError(
                f"cannot allocate scratch memory for a linear layer over an input of shape {tuple(x.shape)}"
            )
        return out


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize [outputs, inputs] to int8; return the values and one scale per row."""
    scales = weight.float().abs().amax(dim=1) / 127
    inverse = torch.where(scales > 0, 1 / scales, 0)  # a row of zeros has scale 0 and stays zero
    return (weight.float() * inverse[:, None]).round().to(torch.int8), scales


def _deinterleave_pairs(values: Tensor) -> Tensor:
    """Reorder each 32 values, even indices before odd: the order in which native code unpacks bfloat16 pairs."""
    return values.float().view(-1, 16, 2).transpose(1, 2).contiguous().flatten()


def _pad_to_panels(values: Tensor | None, count: int) -> Tensor:
    """Return the values as float32, padded with zeros to whole panels; all zeros for None."""
    out = torch.zeros(-(-count // PANEL) * PANEL)
    if values is not None:
        out[:count] = values.detach()
    return out

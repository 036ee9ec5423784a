"""Linear layers with Intel AMX in bfloat16 or int8, with fused bias and activation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from cenote.kernels import native_library
from cenote.kernels.cpu import library as level_library
from cenote.kernels.cpu.library import Format
from cenote.kernels.cpu.threads import MIN_WORK_OF_LINEAR, count_threads
from cenote.kernels.quantized_linear import QuantizedWeight, WeightOnlyLinear

PANEL = 32  # outputs that are packed together; as in cpu/amx_tiles.h
STEP_BYTES = 64  # bytes of an input row that a tile holds


def supports(
    in_features: int, dtype: torch.dtype, device: torch.device, activation: str | None, *, int8: bool = False
) -> bool:
    """Return whether the native code is available and supports a layer of this size in a model of this dtype."""
    row_bytes = in_features * (1 if int8 else 2)
    has_kernel = activation in level_library.ACTIVATION_CODES and row_bytes % STEP_BYTES == 0
    is_bf16_on_cpu = device.type == "cpu" and dtype == torch.bfloat16
    return has_kernel and is_bf16_on_cpu and native_library.is_available()


class AMXLinear(nn.Module):
    """y = activation(x W' + b), accumulated in float32.

    With int8, W has one scale per output and x one per row, after the SmoothQuant scales are applied.
    """

    def __init__(
        self,
        linear: nn.Linear | WeightOnlyLinear,
        activation: str | None,
        *,
        weight: QuantizedWeight | None = None,
        smooth_scales: Tensor | None = None,
    ) -> None:
        """`weight`: the int8 weight, divided by the SmoothQuant scales; None: the bfloat16 weight of `linear`."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.activation = activation
        self.format: Format = "bfloat16" if weight is None else "int8"
        values, scales = _bfloat16_weight(linear) if weight is None else weight
        row_bytes = values.shape[1] * values.element_size()
        # not a parameter: the packed layout must not be moved to another device or saved
        self.tiles = torch.empty(-(-self.out_features // PANEL) * PANEL * row_bytes, dtype=torch.uint8)
        native_library.load_library().cenote_pack_weights(
            values.data_ptr(), self.out_features, row_bytes, self.tiles.data_ptr()
        )
        self.bias = _pad_to_panels(linear.bias, self.out_features)
        self.scales = None if scales is None else _pad_to_panels(scales, self.out_features)
        self.smooth_scales = None if smooth_scales is None else smooth_scales.float().contiguous()
        self.level_descriptor = level_library.PackedLinear(
            panels=self.tiles.data_ptr(),
            bias=self.bias.data_ptr(),
            scales=None if self.scales is None else self.scales.data_ptr(),
            smooth_scales=None if self.smooth_scales is None else self.smooth_scales.data_ptr(),
            inputs=self.in_features,
            outputs=self.out_features,
            activation=level_library.ACTIVATION_CODES.index(activation),
            format=level_library.FORMATS.index(self.format),
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.contiguous()
        num_rows = rows.numel() // self.in_features
        out = torch.empty((*x.shape[:-1], self.out_features), dtype=torch.bfloat16)
        failed = native_library.load_library().cenote_linear(
            ctypes.byref(self.level_descriptor),
            rows.data_ptr(),
            num_rows,
            out.data_ptr(),
            count_threads(num_rows * self.in_features * self.out_features, MIN_WORK_OF_LINEAR),
        )
        if failed:
            raise MemoryError(
                f"cannot allocate scratch memory for a linear layer over an input of shape {tuple(x.shape)}"
            )
        return out


def _bfloat16_weight(linear: nn.Linear | WeightOnlyLinear) -> tuple[Tensor, None]:
    assert isinstance(linear, nn.Linear), "only int8 layers are made of quantized weights"
    return linear.weight.detach().contiguous(), None


def _pad_to_panels(values: Tensor | None, count: int) -> Tensor:
    """Return the values as float32, padded with zeros to whole panels; all zeros for None."""
    out = torch.zeros(-(-count // PANEL) * PANEL)
    if values is not None:
        out[:count] = values.detach()
    return out

"""Linear layers with packed weights in C, with fused bias and activation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels import native_library
from cenote.kernels.cpu import library
from cenote.kernels.cpu.library import CPULevel, Format, ProductLayout, load_amx_level, load_level
from cenote.kernels.cpu.threads import MIN_WORK_OF_LINEAR, count_threads
from cenote.kernels.quantized_linear import QuantizedWeight, WeightOnlyLinear, quantize_int8

TILE_ROW_BYTES = 64
LEAST_ACTIVATION = 0.3  # absolute value of the smallest result of an activation; that of SiLU is -0.28


def supports(linear: nn.Linear, activation: str | None, format: Format) -> bool:
    """Return whether this CPU has a kernel of that format for this layer."""
    level = load_level()
    has_kernel = level is not None and format in level.products and activation in library.ACTIVATION_CODES
    return has_kernel and has_packable_weight(linear, format)


def has_packable_weight(linear: nn.Linear, format: Format) -> bool:
    """Return whether the weight is in float32 on the CPU, or in bfloat16 for that format."""
    dtypes = (torch.float32, torch.bfloat16) if format == "bfloat16" else (torch.float32,)
    return linear.weight.device.type == "cpu" and linear.weight.dtype in dtypes


def find_amx_level(
    in_features: int, dtype: torch.dtype, device: torch.device, activation: str | None, format: Format
) -> CPULevel | None:
    """Return the level of AMX if it is for a layer of this size in a model of this dtype, otherwise None."""
    row_bytes = in_features * (1 if format == "int8" else 2)
    has_kernel = activation in library.ACTIVATION_CODES and row_bytes % TILE_ROW_BYTES == 0
    is_bf16_on_cpu = device.type == "cpu" and dtype == torch.bfloat16
    return load_amx_level() if has_kernel and is_bf16_on_cpu and native_library.is_available() else None


class PackedLinear(nn.Module):
    """y = activation(x W' + b), with x and y in the same dtype, and everything but the products in float32.

    bfloat16: products of bfloat16, summed in float32. float16: products of float16, summed in float32 after every 128
    inputs; rows and weights are scaled by powers of two, so that nothing overflows. int8: one scale per
    output and per row, after the SmoothQuant scales, exact sums.
    """

    def __init__(
        self,
        linear: nn.Linear | WeightOnlyLinear,
        activation: str | None,
        format: Format,
        smooth_scales: Tensor | None = None,
        *,
        weight: QuantizedWeight | None = None,
        level: CPULevel | None = None,
    ) -> None:
        """`weight`: in int8, divided by the SmoothQuant scales; None: that of `linear`."""
        super().__init__()
        level = level or load_level()
        assert level is not None
        self.level = level
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.activation, self.format = activation, format
        values, scales = _convert(linear, format, smooth_scales) if weight is None else weight
        layout = level.products[format]
        # not parameters: the packed layout must not be moved to another device or saved
        self.panels = pack_panels(values, layout)
        self.bias = _pad(linear.bias, self.out_features, layout.columns)
        self.scales = None if scales is None else _pad(scales, self.out_features, layout.columns)
        self.offsets = _column_offsets(values, layout) if layout.input_offset else None
        self.smooth_scales = None if smooth_scales is None else smooth_scales.float().contiguous()
        self.descriptor = library.PackedLinear(
            panels=self.panels.data_ptr(),
            bias=self.bias.data_ptr(),
            scales=None if self.scales is None else self.scales.data_ptr(),
            offsets=None if self.offsets is None else self.offsets.data_ptr(),
            smooth_scales=None if self.smooth_scales is None else self.smooth_scales.data_ptr(),
            inputs=self.in_features,
            outputs=self.out_features,
            activation=library.ACTIVATION_CODES.index(activation),
            format=library.FORMATS.index(format),
            max_norm=_largest_norm(linear) if format == "float16" else 0.0,
            max_bias=_largest_addition(self.bias, activation),
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.to(self.level.dtype).contiguous()
        num_rows = rows.numel() // self.in_features
        out = torch.empty((*x.shape[:-1], self.out_features), dtype=self.level.dtype)
        threads = count_threads(num_rows * self.in_features * self.out_features, MIN_WORK_OF_LINEAR)
        arguments = (ctypes.byref(self.descriptor), rows.data_ptr(), num_rows, out.data_ptr(), threads)
        if self.level.dtype is torch.bfloat16:
            failed = native_library.load_library().cenote_linear(*arguments)
        else:
            failed = self.level.library.cenote_packed_linear(self.level.pointer, *arguments)
        if failed:
            raise MemoryError(
                f"cannot allocate scratch memory for a linear layer over an input of shape {tuple(x.shape)}"
            )
        return out.to(x.dtype)


def pack_panels(weight: Tensor, layout: ProductLayout) -> Tensor:
    """Reorder [outputs, inputs], padded with zeros, to [panel][word][columns][inputs of a word].

    A word that is as long as a row of a tile has two tiles of 16 columns, in which four bytes of inputs stay together.
    """
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % layout.word, 0, -outputs % layout.columns))
    words = padded.shape[1] // layout.word
    if layout.word * weight.element_size() == TILE_ROW_BYTES:
        tiles = padded.view(torch.int32).view(-1, layout.columns // 16, 16, words, TILE_ROW_BYTES // 4)
        return tiles.permute(0, 3, 1, 4, 2).contiguous()
    return padded.view(-1, layout.columns, words, layout.word).transpose(1, 2).contiguous()


def _convert(
    linear: nn.Linear | WeightOnlyLinear, format: Format, smooth_scales: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the weights in the format, and what their products have to be multiplied with."""
    assert isinstance(linear, nn.Linear), "only int8 layers are made of quantized weights"
    weight = linear.weight.detach()
    if format == "int8":
        return quantize_int8(weight if smooth_scales is None else weight / smooth_scales)
    if format == "float16":  # below 1, so that no sum of 128 products overflows
        largest = weight.abs().amax(dim=1).clamp(min=1e-30)
        scales = torch.exp2(torch.frexp(largest).exponent.float())
        return (weight / scales[:, None]).half(), scales
    if format == "bfloat16":
        return weight.bfloat16(), None
    return weight.contiguous(), None


def _largest_norm(linear: nn.Linear | WeightOnlyLinear) -> float:
    assert isinstance(linear, nn.Linear)
    largest: float = linear.weight.detach().norm(dim=1).max().item()
    return largest


def _largest_addition(bias: Tensor, activation: str | None) -> float:
    """Return the most that bias and activation add to the absolute value of a sum."""
    largest = bias.abs().max().item()  # activations increase no absolute value
    if activation is None:
        return largest
    return min(largest, bias.clamp(min=0).max().item() + LEAST_ACTIVATION)  # negative values become almost 0


def _column_offsets(weight: Tensor, layout: ProductLayout) -> Tensor:
    """Return what the offset of the inputs adds to the sums of every output, padded to whole panels."""
    out = torch.zeros(-(-len(weight) // layout.columns) * layout.columns, dtype=torch.int32)
    out[: len(weight)] = layout.input_offset * weight.sum(dim=1, dtype=torch.int32)
    return out


def _pad(values: Tensor | None, count: int, columns: int) -> Tensor:
    """Return the values as float32, padded with zeros to whole panels; all zeros for None."""
    out = torch.zeros(-(-count // columns) * columns)
    if values is not None:
        out[:count] = values.detach()
    return out

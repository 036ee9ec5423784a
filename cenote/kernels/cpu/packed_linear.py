"""Linear layers with packed weights in C, with fused bias and activation."""

from __future__ import annotations

import ctypes

import numpy as np

from cenote.kernels import native_library
from cenote.kernels.cpu import library
from cenote.kernels.cpu.library import CPULevel, Format, ProductLayout, address_of, load_level
from cenote.kernels.cpu.quantize import QuantizedWeight, quantize_int8
from cenote.kernels.cpu.threads import MIN_WORK_OF_LINEAR, count_threads, num_threads
from cenote.utils.arrays import Array
from cenote.utils.dtypes import to_numpy_dtype

TILE_ROW_BYTES = 64
CACHE_LINE = 64
LEAST_ACTIVATION = 0.3  # absolute value of the smallest result of an activation; that of SiLU is -0.28


def supports_amx(in_features: int, activation: str | None, format: Format) -> bool:
    """Return whether AMX multiplies the layers of this size in a model of bfloat16."""
    row_bytes = in_features * (1 if format == "int8" else 2)
    has_kernel = activation in library.ACTIVATION_CODES and row_bytes % TILE_ROW_BYTES == 0
    return has_kernel and native_library.is_available()


class PackedLinear:
    """y = activation(x W' + b), with x and y in the dtype of the level, and everything but the products in float32.

    bfloat16: products of bfloat16, summed in float32. float16: products of float16, summed in float32 after every 128
    inputs; rows and weights are scaled by powers of two, so that nothing overflows. int8: one scale per
    output and per row, after the SmoothQuant scales, exact sums.
    """

    def __init__(
        self,
        weight: Array | None,
        bias: Array | None,
        activation: str | None,
        format: Format,
        smooth_scales: Array | None = None,
        *,
        quantized: QuantizedWeight | None = None,
        level: CPULevel | None = None,
    ) -> None:
        """`quantized`: the weight in int8, divided by the SmoothQuant scales; `weight` may then be None."""
        level = level or load_level()
        assert level is not None
        self.level = level
        self.activation, self.format = activation, format
        if quantized is None:
            assert weight is not None
            values, scales = _convert(weight, format, smooth_scales)
        else:
            values, scales = quantized
        self.out_features, self.in_features = values.shape
        layout = level.products[format]
        self.panels = pack_panels(values, level, format)
        self.bias = _pad(bias, self.out_features, layout.columns)
        self.scales = None if scales is None else _pad(scales, self.out_features, layout.columns)
        self.offsets = _column_offsets(values, layout) if layout.input_offset else None
        self.smooth_scales = None if smooth_scales is None else np.ascontiguousarray(smooth_scales, np.float32)
        self.descriptor = library.PackedLinear(
            panels=address_of(self.panels),
            bias=address_of(self.bias),
            scales=None if self.scales is None else address_of(self.scales),
            offsets=None if self.offsets is None else address_of(self.offsets),
            smooth_scales=None if self.smooth_scales is None else address_of(self.smooth_scales),
            inputs=self.in_features,
            outputs=self.out_features,
            activation=library.ACTIVATION_CODES.index(activation),
            format=library.FORMATS.index(format),
            max_norm=_largest_norm(weight) if format == "float16" else 0.0,
            max_bias=_largest_addition(self.bias, activation),
        )

    def __call__(self, rows: Array) -> Array:
        """Multiply [..., inputs], which is converted to the dtype of the level."""
        dtype = to_numpy_dtype(self.level.dtype)
        rows = np.ascontiguousarray(rows, dtype)
        out = np.empty((*rows.shape[:-1], self.out_features), dtype)
        num_rows = rows.size // self.in_features
        threads = count_threads(num_rows * self.in_features * self.out_features, MIN_WORK_OF_LINEAR)
        arguments = (ctypes.byref(self.descriptor), address_of(rows), num_rows, address_of(out), threads)
        if self.level.dtype == "bfloat16":
            failed = native_library.load_library().cenote_linear(*arguments)
        else:
            failed = self.level.library.cenote_packed_linear(self.level.pointer, *arguments)
        if failed:
            raise MemoryError(f"cannot allocate scratch memory for a linear layer over an input of shape {rows.shape}")
        return out


def pack_panels(weight: Array, level: CPULevel, format: Format) -> Array:
    """Reorder [outputs, inputs], padded with zeros, to [panel][word][columns][inputs of a word], in bytes.

    A word that is as long as a row of a tile has two tiles of 16 columns, in which four bytes of inputs stay together.
    """
    layout = level.products[format]
    weight = np.ascontiguousarray(weight)
    outputs, inputs = weight.shape
    word_bytes = layout.word * weight.itemsize
    is_tiled = word_bytes == TILE_ROW_BYTES
    unit_bytes = 4 if is_tiled else word_bytes
    row_bytes = -(-inputs // layout.word) * word_bytes
    out = _empty_aligned(_round_up(outputs, layout.columns) * row_bytes)
    level.library.cenote_pack_panels(
        address_of(weight),
        outputs,
        inputs * weight.itemsize,
        layout.columns,
        row_bytes // unit_bytes,
        is_tiled,
        unit_bytes,
        address_of(out),
        num_threads(),
    )
    return out


def _convert(weight: Array, format: Format, smooth_scales: Array | None) -> tuple[Array, Array | None]:
    """Return the weights in the format, and what their products have to be multiplied with."""
    if format == "int8":
        return quantize_int8(weight, smooth_scales)
    if format == "bfloat16":
        return weight.astype(to_numpy_dtype("bfloat16"), copy=False), None
    weight = weight.astype(np.float32, copy=False)
    if format == "float16":  # below 1, so that no sum of 128 products overflows
        largest = np.maximum(weight.max(axis=1), -weight.min(axis=1)).clip(min=np.float32(1e-30))
        scales = np.exp2(np.frexp(largest)[1].astype(np.float32))
        return (weight / scales[:, None]).astype(np.float16), scales
    return weight, None


def _largest_norm(weight: Array | None) -> float:
    assert weight is not None, "only int8 layers are made of quantized weights"
    return float(np.linalg.norm(weight.astype(np.float32, copy=False), axis=1).max())


def _largest_addition(bias: Array, activation: str | None) -> float:
    """Return the most that bias and activation add to the absolute value of a sum."""
    largest = float(np.abs(bias).max())  # activations increase no absolute value
    if activation is None:
        return largest
    return min(largest, max(float(bias.max()), 0.0) + LEAST_ACTIVATION)  # negative values become almost 0


def _column_offsets(weight: Array, layout: ProductLayout) -> Array:
    """Return what the offset of the inputs adds to the sums of every output, padded to whole panels."""
    sums = weight.sum(axis=1, dtype=np.int32)
    return _pad(layout.input_offset * sums, len(weight), layout.columns, np.int32)


def _pad(values: Array | None, count: int, columns: int, dtype: type[np.generic] = np.float32) -> Array:
    """Return the values padded with zeros to whole panels; all zeros for None."""
    out = _empty_aligned(_round_up(count, columns) * np.dtype(dtype).itemsize).view(dtype)
    out[:] = 0
    if values is not None:
        out[:count] = values
    return out


def _empty_aligned(num_bytes: int) -> Array:
    """Return bytes that start with a cache line, so that no vector of a panel is in two of them."""
    memory = np.empty(num_bytes + CACHE_LINE, np.uint8)
    start = -address_of(memory) % CACHE_LINE
    return memory[start : start + num_bytes]


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit

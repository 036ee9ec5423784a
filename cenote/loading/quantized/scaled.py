"""Weights with a scale per tensor, per output, per group of inputs or per block: FP8 checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.errors import LoadError
from cenote.loading.quantized.tensor_groups import Tensors, drop_tensors, replace_groups
from cenote.loading.weights import CheckpointWeights
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

# scales of static activation quantization and of a quantized KV cache
UNUSED_SCALES = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".q_scale", ".output_scale")


def add_fp8_weights(weights: CheckpointWeights, config: Mapping[str, Any]) -> None:
    """`weight_scale_inv` has a scale per block, `weight_scale` one per tensor or per output; both are factors."""
    block = _block_size(config.get("weight_block_size"))
    drop_tensors(weights, *UNUSED_SCALES, ".input_scale_ub")
    for scale in ("weight_scale_inv", "weight_scale"):

        def dequantize(module: str, parts: Tensors, scale: str = scale) -> Array:
            return scale_weight(module, parts["weight"], parts[scale], block)

        replace_groups(weights, marker=scale, parts=("weight", scale), dequantize=dequantize)


def scale_weight(
    module: str, weight: Array, scale: Array, block: tuple[int, int] | None = None, zero_point: Array | None = None
) -> Array:
    """Return (weight - zero_point) * scale in float32; scales are repeated over the rows and columns they apply to."""
    size = weight.shape[-2:]
    exact = to_float32(weight)
    if zero_point is not None:
        exact = exact - _expand(module, zero_point, size, block)
    return exact * _expand(module, scale, size, block)


def _expand(module: str, scale: Array, size: tuple[int, ...], block: tuple[int, int] | None) -> Array:
    """Return a scale per element, or one that broadcasts."""
    scale = to_float32(scale)
    if scale.size == 1:
        return scale.reshape(())
    if scale.ndim == 1:
        scale = scale[:, None]  # one per output
    rows, columns = scale.shape[-2:]
    # blocks at the end of a weight may be smaller: the size of a block does not follow from the shapes
    height, width = block if block is not None and (rows, columns) != (size[0], 1) else (1, -(-size[1] // columns))
    if rows != -(-size[0] // height) or columns != -(-size[1] // width):
        raise LoadError(
            f"{module}: scales of shape {list(scale.shape)} do not fit a weight of shape {list(size)} with "
            f"blocks of {[height, width]}; expected a scale per tensor, per output, per group or per block"
        )
    if columns > 1:  # before the rows, which are then repeated as a whole
        scale = scale.repeat(width, axis=-1)[..., : size[1]]
    return scale.repeat(height, axis=-2)[..., : size[0], :]


def _block_size(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not (isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(x, int) and x > 0 for x in value)):
        raise LoadError(
            f"quantization_config: invalid weight_block_size={value!r}; expected two numbers like [128, 128]"
        )
    return value[0], value[1]

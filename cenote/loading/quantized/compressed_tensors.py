"""compressed-tensors: fp8 and int8 weights with scales, and integers of 4 or 8 bits packed into int32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cenote.errors import LoadError
from cenote.loading.quantized.scaled import UNUSED_SCALES, scale_weight
from cenote.loading.quantized.tensor_groups import (
    Tensors,
    check_bits,
    drop_tensors,
    replace_groups,
    unpack_integers,
)
from cenote.loading.weights import CheckpointWeights
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

SCALED_FORMATS = ("float-quantized", "int-quantized", "naive-quantized")
PACKED_FORMAT = "pack-quantized"
FORMATS = (*SCALED_FORMATS, PACKED_FORMAT)


def add_compressed_weights(weights: CheckpointWeights, config: Mapping[str, Any]) -> None:
    groups = _weight_settings(config)
    block = _block_structure(groups)
    for stored in {config.get("format"), *(group.get("format") for group in _groups(config))} - {None}:
        if stored not in FORMATS and stored not in ("dense", "mixed-precision"):
            raise LoadError(
                f"{weights.source}: compressed-tensors format {stored!r} is not supported; supported are: "
                f"{', '.join(FORMATS)}"
            )
    drop_tensors(weights, *UNUSED_SCALES, ".input_zero_point", ".output_zero_point")

    def unpack(module: str, parts: Tensors) -> Array:
        return _unpack_weight(module, parts, groups)

    def scale(module: str, parts: Tensors) -> Array:
        return scale_weight(module, parts["weight"], parts["weight_scale"], block, parts.get("weight_zero_point"))

    replace_groups(
        weights,
        marker="weight_packed",
        parts=("weight_packed", "weight_scale", "weight_shape"),
        optional=("weight_zero_point", "weight_g_idx"),
        dequantize=unpack,
    )
    replace_groups(
        weights,
        marker="weight_scale",
        parts=("weight", "weight_scale"),
        optional=("weight_zero_point",),
        dequantize=scale,
    )


def has_fp8_weights(config: Mapping[str, Any]) -> bool:
    settings = _weight_settings(config)
    return bool(settings) and all(item.get("type") == "float" and item.get("num_bits") == 8 for item in settings)


def _groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = config.get("config_groups") or {}
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def _weight_settings(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [group["weights"] for group in _groups(config) if isinstance(group.get("weights"), Mapping)]


def _block_structure(settings: list[Mapping[str, Any]]) -> tuple[int, int] | None:
    for item in settings:
        if item.get("strategy") == "block" and (block := item.get("block_structure")):
            return int(block[0]), int(block[1])
    return None


def _unpack_weight(module: str, parts: Tensors, settings: list[Mapping[str, Any]]) -> Array:
    """Values have an offset of half their range; zero points are packed along the outputs."""
    packed, scale = parts["weight_packed"], to_float32(parts["weight_scale"])
    rows, columns = (int(size) for size in parts["weight_shape"])
    words = packed.shape[-1]
    # a layer is in one of the groups: its size says in which
    candidates = {item.get("num_bits") for item in settings}
    bits = next((n for n in candidates if isinstance(n, int) and n and -(-columns * n // 32) == words), None)
    bits = check_bits(module, bits, (4, 8))
    middle = 1 << (bits - 1)
    values = unpack_integers(packed, bits, dim=1)[:rows, :columns].astype(np.float32) - middle
    group_of = _group_index(parts.get("weight_g_idx"), columns, scale.shape[-1])
    if (zeros := parts.get("weight_zero_point")) is not None:
        values = values - (unpack_integers(zeros, bits, dim=0)[:rows].astype(np.float32) - middle)[:, group_of]
    return values * scale[:, group_of]


def _group_index(stored: Array | None, columns: int, num_groups: int) -> Array:
    """Return the group of every input; -1 in the stored index means that groups are in order."""
    if stored is not None and bool((stored >= 0).all()):
        return stored
    return np.arange(columns) // -(-columns // num_groups)

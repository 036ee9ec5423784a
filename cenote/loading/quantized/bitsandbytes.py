"""bitsandbytes: int8 with a maximum per output, and 4-bit codes (nf4, fp4) with a maximum per block of values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cenote.errors import LoadError
from cenote.loading.quantized.tensor_groups import Tensors, replace_groups
from cenote.loading.weights import CheckpointWeights

STATE = "quant_state.bitsandbytes__"  # then the name of the code
CODES = ("nf4", "fp4")
INT8_MAX = 127


def add_bitsandbytes_weights(weights: CheckpointWeights, config: Mapping[str, Any], device: torch.device) -> None:
    replace_groups(
        weights,
        device,
        marker="SCB",
        parts=("weight", "SCB"),
        optional=("weight_format",),
        dequantize=_dequantize_int8,
    )
    for code in CODES:
        marker = f"weight.{STATE}{code}"
        replace_groups(
            weights,
            device,
            marker=marker,
            parts=("weight", "weight.absmax", "weight.quant_map", marker),
            optional=("weight.nested_absmax", "weight.nested_quant_map"),
            dequantize=_dequantize_4bit(marker),
        )


def _dequantize_int8(module: str, parts: Tensors) -> Tensor:
    stored_as = int(parts.get("weight_format", torch.zeros(())))
    if stored_as != 0:
        raise LoadError(f"{module}: int8 weights in layout {stored_as} are not supported; supported is 0 (rows)")
    return parts["weight"].float() * (parts["SCB"].float()[:, None] / INT8_MAX)


def _dequantize_4bit(marker: str) -> Callable[[str, Tensors], Tensor]:
    def dequantize(module: str, parts: Tensors) -> Tensor:
        state = _read_state(module, parts[marker])
        shape, block = tuple(state["shape"]), int(state["blocksize"])
        packed = parts["weight"].flatten()
        codes = torch.stack((packed >> 4, packed & 15), dim=1).flatten().long()  # the first value is in the high bits
        count = 1
        for size in shape:
            count *= size
        absmax = _block_maxima(parts, state)
        if len(codes) < count or len(absmax) != -(-count // block):
            raise LoadError(
                f"{module}: {len(codes)} values and {len(absmax)} blocks of {block} do not give a weight of shape "
                f"{list(shape)}; download the model again"
            )
        exact = parts["weight.quant_map"].float()[codes[:count]]
        return (exact * absmax.repeat_interleave(block)[:count]).view(shape)

    return dequantize


def _block_maxima(parts: Tensors, state: Mapping[str, Any]) -> Tensor:
    """Return the maximum of every block; with nested quantization, maxima are 8-bit codes themselves."""
    absmax = parts["weight.absmax"]
    if "weight.nested_absmax" not in parts:
        return absmax.float()
    values = parts["weight.nested_quant_map"].float()[absmax.long()]
    scales = parts["weight.nested_absmax"].float().repeat_interleave(int(state["nested_blocksize"]))
    return values * scales[: len(values)] + float(state["nested_offset"])


def _read_state(module: str, stored: Tensor) -> dict[str, Any]:
    try:
        state = json.loads(bytes(stored.cpu().numpy()))
        if not {"shape", "blocksize"} <= state.keys():
            raise ValueError("no shape or no blocksize")
    except (ValueError, AttributeError, RecursionError) as error:
        raise LoadError(f"{module}: invalid quant_state of bitsandbytes ({error}); download the model again") from error
    return state  # type: ignore[no-any-return]

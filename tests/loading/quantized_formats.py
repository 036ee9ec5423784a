"""Packers of quantized checkpoint formats, written from the definitions of the formats, one value at a time.

Each returns the stored tensors of one layer by suffix, and the weight they stand for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Packed = tuple[dict[str, Tensor], Tensor]
Packer = Callable[[Tensor], Packed]

NF4 = (
    -1.0, -0.6961928, -0.5250731, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0,
)  # fmt: skip
FP4 = (0.0, 0.0052083, 0.6666667, 1.0, 0.3333333, 0.5, 0.1666667, 0.25)


def fp8_block(weight: Tensor, size: int = 24) -> Packed:
    """The last blocks are smaller."""
    rows, columns = weight.shape
    scales = torch.zeros(-(-rows // size), -(-columns // size))
    values, exact = torch.zeros_like(weight).to(torch.float8_e4m3fn), torch.zeros_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size))
            scales[i, j] = weight[block].abs().max() / 448
            values[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            exact[block] = values[block].float() * scales[i, j]
    return {"weight": values, "weight_scale_inv": scales}, exact


def fp8_tensor(weight: Tensor) -> Packed:
    scale = weight.abs().max() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    stored = {"weight": values, "weight_scale": scale.reshape(()), "input_scale": torch.tensor(0.5)}
    return stored, values.float() * scale


def fp8_channel(weight: Tensor) -> Packed:
    scales = weight.abs().amax(dim=1, keepdim=True) / 448
    values = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scales}, values.float() * scales


def int8_channel(weight: Tensor) -> Packed:
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    values = (weight / scales).round().to(torch.int8)
    return {"weight": values, "weight_scale": scales}, values.float() * scales


def int8_channel_asymmetric(weight: Tensor) -> Packed:
    low, high = weight.amin(dim=1, keepdim=True), weight.amax(dim=1, keepdim=True)
    scales = (high - low) / 255
    zeros = (-128 - low / scales).round().clamp(-128, 127).to(torch.int8)
    values = (weight / scales + zeros).round().clamp(-128, 127).to(torch.int8)
    stored = {"weight": values, "weight_scale": scales, "weight_zero_point": zeros}
    return stored, (values.float() - zeros.float()) * scales


def _integer_groups(
    weight: Tensor, group_of: np.ndarray[Any, Any], bits: int, *, symmetric: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return integers [out, in], zero points and float16 scales [groups, out], and the weight [out, in]."""
    exact = weight.numpy()
    num_groups, limit = group_of.max() + 1, 2**bits - 1
    scales = np.zeros((num_groups, len(exact)), np.float16)
    zeros = np.zeros((num_groups, len(exact)), np.int64)
    values = np.zeros(exact.shape, np.int64)
    found = np.zeros(exact.shape, np.float32)
    for row in range(len(exact)):
        for group in range(num_groups):
            columns = np.flatnonzero(group_of == group)
            part = exact[row, columns]
            if symmetric:
                scale, zero = np.float16(np.abs(part).max() * 2 / limit), (limit + 1) // 2
            else:
                scale = np.float16((part.max() - part.min()) / limit)
                zero = int(np.clip(round(float(-part.min() / scale)), 1, limit))
            scales[group, row], zeros[group, row] = scale, zero
            values[row, columns] = np.clip(np.round(part / np.float32(scale)) + zero, 0, limit)
            found[row, columns] = (values[row, columns] - zero) * np.float32(scale)
    return values, zeros, scales, found


def _pack_words(values: np.ndarray[Any, Any], bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Pack along the last dimension into 32-bit words, the lowest bits first; `order`: the value at each position."""
    per_word = 32 // bits
    rows, columns = values.shape
    words = np.zeros((rows, -(-columns // per_word)), np.uint32)
    for column in range(words.shape[1]):
        for position in range(per_word):
            source = column * per_word + (position if order is None else order[position])
            if source < columns:
                words[:, column] |= values[:, source].astype(np.uint32) << np.uint32(bits * position)
    return torch.from_numpy(words.view(np.int32).copy())


def gptq(bits: int, *, symmetric: bool = True, desc_act: bool = False, zero_offset: int = 1, size: int = 16) -> Packer:
    def pack(weight: Tensor) -> Packed:
        group_of = np.arange(weight.shape[1]) // size
        if desc_act:
            group_of = np.random.default_rng(0).permutation(group_of)
        values, zeros, scales, exact = _integer_groups(weight, group_of, bits, symmetric=symmetric)
        stored = {
            "qweight": _pack_words(values, bits).T.contiguous(),
            "qzeros": _pack_words(zeros - zero_offset, bits),
            "scales": torch.from_numpy(scales),
        }
        if desc_act:
            stored["g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        return stored, torch.from_numpy(exact)

    return pack


def awq(weight: Tensor) -> Packed:
    group_of = np.arange(weight.shape[1]) // 16
    values, zeros, scales, exact = _integer_groups(weight, group_of, 4, symmetric=False)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    stored = {
        "qweight": _pack_words(values.T, 4, order),
        "qzeros": _pack_words(zeros, 4, order),
        "scales": torch.from_numpy(scales),
    }
    return stored, torch.from_numpy(exact)


def packed_compressed(bits: int, *, symmetric: bool) -> Packer:
    def pack(weight: Tensor) -> Packed:
        group_of = np.arange(weight.shape[1]) // 16
        values, zeros, scales, exact = _integer_groups(weight, group_of, bits, symmetric=symmetric)
        stored = {
            "weight_packed": _pack_words(values, bits),
            "weight_scale": torch.from_numpy(scales.T.copy()),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            stored["weight_zero_point"] = _pack_words(zeros, bits).T.contiguous()
        return stored, torch.from_numpy(exact)

    return pack


def bnb_int8(weight: Tensor) -> Packed:
    maxima = weight.abs().amax(dim=1)
    values = (weight / maxima[:, None] * 127).round().to(torch.int8)
    stored = {"weight": values, "SCB": maxima, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, values.float() * maxima[:, None] / 127


def bnb_4bit(code: str, *, nested: bool, size: int = 64) -> Packer:
    table = np.array(NF4 if code == "nf4" else (*FP4, *(-value for value in FP4)), np.float32)

    def pack(weight: Tensor) -> Packed:
        flat = weight.flatten().numpy()
        blocks = [flat[start : start + size] for start in range(0, len(flat), size)]
        maxima = np.array([np.abs(block).max() for block in blocks], np.float32)
        state: dict[str, Any] = {"quant_type": code, "blocksize": size, "dtype": "float32", "shape": list(weight.shape)}
        stored: dict[str, Tensor] = {"weight.quant_map": torch.tensor(table)}
        if nested:
            state |= {"nested_blocksize": 4, "nested_dtype": "float32", "nested_offset": float(maxima.mean())}
            nested_table = np.linspace(-1, 1, 256, dtype=np.float32)
            rest = maxima - np.float32(state["nested_offset"])
            nested_max = np.array([np.abs(rest[at : at + 4]).max() for at in range(0, len(rest), 4)], np.float32)
            codes = np.zeros(len(rest), np.uint8)
            for at in range(len(rest)):
                scale = max(float(nested_max[at // 4]), 1e-8)
                codes[at] = np.abs(nested_table - rest[at] / scale).argmin()
                maxima[at] = nested_table[codes[at]] * nested_max[at // 4] + np.float32(state["nested_offset"])
            stored["weight.absmax"] = torch.from_numpy(codes)
            stored["weight.nested_absmax"] = torch.from_numpy(nested_max)
            stored["weight.nested_quant_map"] = torch.from_numpy(nested_table)
        else:
            stored["weight.absmax"] = torch.from_numpy(maxima.copy())
        indices = [
            np.abs(table[None] - (block / maximum)[:, None]).argmin(axis=1)
            for block, maximum in zip(blocks, maxima, strict=True)
        ]
        exact = np.concatenate([table[index] * maximum for index, maximum in zip(indices, maxima, strict=True)])
        joined = np.concatenate(indices).astype(np.uint8)
        stored["weight"] = torch.from_numpy((joined[::2] << 4 | joined[1::2])[:, None].copy())
        text = json.dumps(state).encode()
        stored[f"weight.quant_state.bitsandbytes__{code}"] = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
        return stored, torch.from_numpy(exact).view(weight.shape)

    return pack

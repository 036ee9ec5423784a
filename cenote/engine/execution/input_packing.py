"""Copy the columns of a PackedBatch to the device at once, and pack its images."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cenote.engine.execution.packed_columns import build_columns
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.packed_batch import PackedBatch, PackedImages
from cenote.protocol.images import InputImages, PixelNormalization, ProcessedImage
from cenote.utils.arrays import Array

# in elements of 8 bytes: kernels load fastest from 128-byte aligned addresses, and Triton specializes on alignment
ALIGNMENT = 16


def pack_inputs(
    inputs: TokenizedInputs,
    device: torch.device,
    lora_names: tuple[str | None, ...] | None = None,
    *,
    is_deterministic: bool = False,
) -> PackedBatch:
    columns, attended_lens = build_columns(inputs)
    offsets = inputs.cu_seqlens
    tensors = _copy_to_device(columns, device)
    if inputs.row_mask is not None:
        tensors["row_mask"] = tensors["row_mask"].bool()
    images = inputs.images
    if images is not None and (axes := _build_mrope_positions(images, columns["positions"], offsets)) is not None:
        tensors["mrope_positions"] = torch.from_numpy(axes).to(device)
    return PackedBatch(
        **tensors,  # type: ignore[arg-type]  # the keys are field names
        seq_lens_cpu=inputs.seq_lens,
        inputs_embeds=None if inputs.inputs_embeds is None else _concat_embeds(inputs.inputs_embeds, device),
        images=None if images is None else _pack_images(images, offsets, device),
        attended_lens_cpu=attended_lens,
        lora_names=lora_names,
        is_deterministic=is_deterministic,
    )


def _copy_to_device(columns: dict[str, Array], device: torch.device) -> dict[str, Tensor]:
    """Return the arrays as int64 tensors on the device, using one copy for all."""
    if device.type == "cpu":
        return {name: torch.from_numpy(np.ascontiguousarray(column, np.int64)) for name, column in columns.items()}
    # torch's caching allocator reuses the pinned memory only after the copy from it has finished
    host, ranges = concat_columns(columns, pin_memory=device.type == "cuda")
    on_device = host.to(device, non_blocking=True)
    return {name: on_device[column_range] for name, column_range in ranges.items()}


def concat_columns(columns: dict[str, Array], *, pin_memory: bool) -> tuple[Tensor, dict[str, slice]]:
    """Concatenate the arrays at aligned offsets; return the tensor and the range of each array."""
    ends = np.cumsum([-(-len(column) // ALIGNMENT) * ALIGNMENT for column in columns.values()]).tolist()
    host = torch.empty(ends[-1], dtype=torch.int64, pin_memory=pin_memory)
    writable = host.numpy()
    ranges = {name: slice(start, start + len(columns[name])) for name, start in zip(columns, [0, *ends], strict=False)}
    for name, column_range in ranges.items():
        writable[column_range] = columns[name]
    return host, ranges


def _concat_embeds(embeds: Many[Any], device: torch.device) -> Tensor:
    return torch.cat([torch.as_tensor(rows) for rows in embeds if rows is not None]).to(device)


def _pack_images(inputs_images: Many[InputImages | None], offsets: Array, device: torch.device) -> PackedImages:
    """Pack the images of a batch; an image that occurs several times is processed once."""
    unique = {image.cache_key: image for images in inputs_images if images is not None for image in images.images}
    ends = np.cumsum([image.num_embeds for image in unique.values()])
    first_features = dict(zip(unique, (0, *ends.tolist()), strict=False))
    token_indices, feature_indices = [], []
    for images, start in zip(inputs_images, offsets.tolist(), strict=False):
        if images is not None:
            token_indices.append(images.token_indices + start)
            feature_indices += [
                first_features[image.cache_key] + np.arange(image.num_embeds) for image in images.images
            ]
    return PackedImages(
        tuple(unique.values()),
        _pack_patches(list(unique.values()), device),
        torch.from_numpy(np.concatenate(token_indices)).to(device),
        torch.from_numpy(np.concatenate(feature_indices)).to(device),
    )


def _pack_patches(images: Many[ProcessedImage], device: torch.device) -> Tensor:
    """Return the normalized patches of all images; they are copied as bytes and normalized on the device."""
    if device.type == "cpu":  # image by image, which stays in the CPU cache
        return torch.cat([normalize_patches(torch.from_numpy(image.patches), image.normalization) for image in images])
    groups = [[*group] for _, group in groupby(images, lambda image: image.normalization)]  # mostly a single one
    patches = [torch.from_numpy(np.concatenate([image.patches for image in group])).to(device) for group in groups]
    return torch.cat(
        [
            normalize_patches(group_patches, group[0].normalization)
            for group_patches, group in zip(patches, groups, strict=True)
        ]
    )


def normalize_patches(patches: Tensor, normalization: PixelNormalization | None) -> Tensor:
    """Rescale and normalize uint8 patches; without a normalization, the patches are pixel values already."""
    if normalization is None:
        return patches
    mean, std = torch.tensor([normalization.mean, normalization.std], device=patches.device)[..., None]
    values = patches.reshape(len(patches), 3, -1).to(torch.float32, copy=True)
    return values.mul_(normalization.rescale_factor).sub_(mean).div_(std).flatten(1)


def _build_mrope_positions(inputs_images: Many[InputImages | None], positions: Array, offsets: Array) -> Array | None:
    """Return M-RoPE positions, [axes, tokens], equal on all axes for inputs without images; None if none has them."""
    with_positions = [
        (index, images.mrope_positions)
        for index, images in enumerate(inputs_images)
        if images is not None and images.mrope_positions is not None
    ]
    if not with_positions:
        return None
    axes = np.repeat(positions[None], len(with_positions[0][1]), axis=0)
    for index, mrope_positions in with_positions:
        axes[:, offsets[index] : offsets[index + 1]] = mrope_positions
    return axes

"""Encode and decode the arrays of token batches and their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from cenote.api.wire.messages import ArrayBytes, OperandArray, Operands, Shapes
from cenote.api.wire.token_messages import BatchImages, ImageRecord, TokenBatch, TokenResults
from cenote.engine.result_rows import RaggedRows
from cenote.inputs.tokenized_inputs import METADATA_DTYPE, Int64Array, TokenizedInputs
from cenote.protocol.images import InputImages, ProcessedImage
from cenote.protocol.requests import Operand

Array = np.ndarray[Any, Any]
ALIGNMENT = 8
METADATA_BYTES = METADATA_DTYPE.itemsize
NO_TOKENS = np.zeros(0, np.int32)


def encode_inputs(inputs: TokenizedInputs) -> list[Array]:
    arrays: list[Array] = [_pad(inputs.token_ids), np.ascontiguousarray(inputs.metadata).view(np.int64)]
    if inputs.row_mask is not None:
        arrays.append(_pad(inputs.row_mask.view(np.uint8)))
    return arrays


def decode_inputs(message: TokenBatch, array_bytes: ArrayBytes) -> TokenizedInputs:
    """Return the inputs; raises ValueError if the arrays are shorter than the message says."""
    num_tokens, num_inputs = message.num_tokens, sum(message.num_inputs)
    token_ids = np.frombuffer(array_bytes, np.int32, num_tokens)
    start = _aligned(4 * num_tokens)
    metadata = np.frombuffer(array_bytes, METADATA_DTYPE, num_inputs, start)
    start += METADATA_BYTES * num_inputs
    row_mask = None
    if message.has_row_mask:
        row_mask = np.frombuffer(array_bytes, np.bool_, num_tokens, start)
        start += _aligned(num_tokens)
    images = None
    if message.images is not None:
        images = decode_images(message.images, metadata["length"].tolist(), ArrayReader(array_bytes, start))
    inputs = TokenizedInputs(token_ids, metadata, row_mask, images=images, operands=decode_operands(message.operands))
    if int(inputs.cu_seqlens[-1]) != num_tokens:
        raise ValueError(f"{num_tokens} token ids for inputs of {int(inputs.cu_seqlens[-1])} tokens")
    return inputs


def encode_images(inputs_images: Sequence[InputImages | None] | None) -> tuple[BatchImages | None, list[Array]]:
    """Return the images of a batch and their arrays; an image that several inputs have is there once."""
    if inputs_images is None:
        return None, []
    present = [images for images in inputs_images if images is not None]
    distinct = {image.cache_key: image for images in present for image in images.images}
    numbers = {key: number for number, key in enumerate(distinct)}
    indices = [
        [] if images is None else [numbers[image.cache_key] for image in images.images] for images in inputs_images
    ]
    num_axes = next((len(images.mrope_positions) for images in present if images.mrope_positions is not None), 0)
    arrays: list[Array] = []
    for images in present:
        arrays.append(np.ascontiguousarray(images.token_indices, np.int64))
        if images.mrope_positions is not None:
            arrays.append(np.ascontiguousarray(images.mrope_positions, np.int64))
    for image in distinct.values():
        if image.row_order is not None:
            arrays.append(np.ascontiguousarray(image.row_order, np.int64))
        arrays.append(image.patches)
        if missing := _aligned(image.patches.nbytes) - image.patches.nbytes:  # patches are not copied
            arrays.append(np.zeros(missing, np.uint8))
    return BatchImages(indices, num_axes, [_make_record(image) for image in distinct.values()]), arrays


def _make_record(image: ProcessedImage) -> ImageRecord:
    return ImageRecord(
        image.patches.dtype.str,
        image.patches.shape,
        image.patch_grids,
        image.num_embeds,
        image.original_size,
        image.cache_key,
        image.normalization,
        image.row_order is not None,
    )


class ArrayReader:
    """Reads one array after the other, without copying them."""

    def __init__(self, array_bytes: ArrayBytes, start: int) -> None:
        self.array_bytes = array_bytes
        self.start = start

    def read(self, dtype: str, *shape: int) -> Array:
        array = np.frombuffer(self.array_bytes, dtype, math.prod(shape), self.start).reshape(shape)
        self.start += _aligned(array.nbytes)
        return array


def decode_images(message: BatchImages, lengths: Sequence[int], reader: ArrayReader) -> list[InputImages | None]:
    """Return the images of each input; their tokens are those of the inputs already."""
    arrays: list[tuple[Array, Array | None] | None] = []
    for indices, length in zip(message.indices, lengths, strict=True):
        if not indices:
            arrays.append(None)
            continue
        token_indices = reader.read("<i8", sum([message.records[index].num_embeds for index in indices]))
        arrays.append((token_indices, reader.read("<i8", message.num_axes, length) if message.num_axes else None))
    images = []
    for record in message.records:
        row_order = reader.read("<i8", record.num_embeds) if record.has_row_order else None
        images.append(
            ProcessedImage(
                reader.read(record.dtype, *record.shape),
                record.patch_grids,
                NO_TOKENS,
                np.ones(record.num_embeds, np.bool_),
                record.original_size,
                record.cache_key,
                record.normalization,
                row_order,
            )
        )
    return [
        None if parts is None else InputImages(tuple([images[index] for index in indices]), *parts)
        for indices, parts in zip(message.indices, arrays, strict=True)
    ]


def encode_operands(operands: Sequence[Operand | None] | None) -> Operands | None:
    if operands is None:
        return None
    distinct = {id(operand): operand for operand in operands if operand is not None}
    numbers = {key: number for number, key in enumerate(distinct)}
    arrays = [OperandArray(array.dtype.str, array.shape, array.tobytes()) for array in distinct.values()]
    return Operands([numbers.get(id(operand), -1) for operand in operands], arrays)


def decode_operands(message: Operands | None) -> list[Operand | None] | None:
    if message is None:
        return None
    # copied: tensors are made of them, which must be writable
    arrays = [np.frombuffer(bytearray(item.data), item.dtype).reshape(item.shape) for item in message.arrays]
    return [None if number < 0 else arrays[number] for number in message.indices]


def decode_results(message: TokenResults, array_bytes: ArrayBytes) -> tuple[Int64Array, Int64Array, list[RaggedRows]]:
    """Return the call ids, the input numbers, and for each task the results."""
    count = message.num_results
    call_ids = np.frombuffer(array_bytes, np.int64, count)
    input_numbers = np.frombuffer(array_bytes, np.int64, count, 8 * count)
    flat = np.frombuffer(array_bytes, np.float32, offset=16 * count)
    results: list[RaggedRows] = []
    for shapes in message.shapes:
        if len(shapes) == 1:
            end = count * math.prod(shapes[0])
            results.append(RaggedRows(flat[:end].reshape(count, *shapes[0])))
        else:
            offsets = list(accumulate([math.prod(shape) for shape in shapes], initial=0))
            end = offsets[-1]
            results.append(RaggedRows(flat[:end], offsets, shapes))
        flat = flat[end:]
    return call_ids, input_numbers, results


def get_shapes(arrays: Sequence[Array]) -> Shapes:
    """Return the shapes of arrays, a single one if all are equal."""
    shapes = [array.shape for array in arrays]
    return shapes[:1] if len(set(shapes)) == 1 else shapes


def _pad(array: Array) -> Array:
    """Return the array with zeros up to a multiple of 8 bytes, so that the next one is aligned."""
    missing = (_aligned(array.nbytes) - array.nbytes) // array.itemsize
    return np.concatenate((array, np.zeros(missing, array.dtype))) if missing else np.ascontiguousarray(array)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT

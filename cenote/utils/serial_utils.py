"""Decode embeddings sent as base64 or bytes, on the side of the client; mirrors `vllm.utils.serial_utils`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import torch

from cenote.utils.binary_formats import EmbedDType, Endianness

ENDIANNESS: list[Endianness] = list(get_args(Endianness))
EMBED_DTYPE_TO_TORCH_DTYPE: dict[EmbedDType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
EMBED_DTYPE_TO_N_BYTES = {name: dtype.itemsize for name, dtype in EMBED_DTYPE_TO_TORCH_DTYPE.items()}
BYTE_ORDERS = {"native": "=", "big": ">", "little": "<"}  # in numpy's notation


class DTypeInfo(NamedTuple):
    """A number format of embeddings."""

    torch_dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.torch_dtype.itemsize


EMBED_DTYPES = {name: DTypeInfo(dtype) for name, dtype in EMBED_DTYPE_TO_TORCH_DTYPE.items()}


@dataclass(slots=True)
class MetadataItem:
    """Byte range, dtype and shape of one result in a binary body: an entry of the `metadata` header."""

    index: int
    embed_dtype: EmbedDType
    endianness: Endianness
    start: int
    end: int
    shape: Sequence[int]


def build_metadata_items(
    embed_dtype: EmbedDType, endianness: Endianness, shape: Sequence[int], n_request: int
) -> list[MetadataItem]:
    """Return the items of a body without a header (`bytes_only`), whose results all have the same shape."""
    size = math.prod(shape) * EMBED_DTYPE_TO_N_BYTES[embed_dtype]
    return [
        MetadataItem(index, embed_dtype, endianness, index * size, (index + 1) * size, shape)
        for index in range(n_request)
    ]


def binary2tensor(binary: bytes, shape: Sequence[int], embed_dtype: EmbedDType, endianness: Endianness) -> torch.Tensor:
    """Return the tensor of raw bytes."""
    dtype = EMBED_DTYPE_TO_TORCH_DTYPE[embed_dtype]
    # as integers: numpy has neither bfloat16 nor 8-bit floats
    words = np.frombuffer(binary, dtype=f"{BYTE_ORDERS[endianness]}u{dtype.itemsize}")
    native_bytes = words.astype(f"=u{dtype.itemsize}").view(np.uint8)
    return torch.from_numpy(native_bytes).view(dtype).reshape(tuple(shape))


def decode_pooling_output(items: Sequence[MetadataItem], body: bytes) -> list[torch.Tensor]:
    """Return the tensors of a binary body in the order of the inputs."""
    return [
        binary2tensor(body[item.start : item.end], item.shape, item.embed_dtype, item.endianness)
        for item in sorted(items, key=lambda item: item.index)
    ]


decoding_pooling_output = decode_pooling_output  # its name in older releases of vLLM

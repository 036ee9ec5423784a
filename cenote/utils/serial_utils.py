"""Decode embeddings sent as base64 or bytes, on the side of the client; mirrors `vllm.utils.serial_utils`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from cenote.utils.binary_formats import EmbedDType, Endianness
from cenote.utils.tensors import import_torch, to_public_tensor

if TYPE_CHECKING:
    import torch

ENDIANNESS: list[Endianness] = list(get_args(Endianness))
EMBED_DTYPE_TO_N_BYTES: dict[EmbedDType, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
# names of torch and of ml_dtypes that differ from ours
DTYPE_NAMES = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
BYTE_ORDERS = {"native": "=", "big": ">", "little": "<"}  # in numpy's notation


class _TorchDTypes(Mapping[EmbedDType, "torch.dtype"]):
    """The dtypes of torch, which is imported for who reads one."""

    def __getitem__(self, name: EmbedDType) -> torch.dtype:
        if name not in EMBED_DTYPE_TO_N_BYTES:
            raise KeyError(name)
        import torch

        dtype: torch.dtype = getattr(torch, DTYPE_NAMES.get(name, name))
        return dtype

    def __iter__(self) -> Iterator[EmbedDType]:
        return iter(EMBED_DTYPE_TO_N_BYTES)

    def __len__(self) -> int:
        return len(EMBED_DTYPE_TO_N_BYTES)


EMBED_DTYPE_TO_TORCH_DTYPE = _TorchDTypes()


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """A number format of embeddings."""

    name: EmbedDType

    @property
    def torch_dtype(self) -> torch.dtype:
        return EMBED_DTYPE_TO_TORCH_DTYPE[self.name]

    @property
    def nbytes(self) -> int:
        return EMBED_DTYPE_TO_N_BYTES[self.name]


EMBED_DTYPES = {name: DTypeInfo(name) for name in EMBED_DTYPE_TO_N_BYTES}


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
    """Return the tensor of raw bytes; without torch an array."""
    size = EMBED_DTYPE_TO_N_BYTES[embed_dtype]
    # as integers: numpy has neither bfloat16 nor 8-bit floats
    words = np.frombuffer(binary, dtype=f"{BYTE_ORDERS[endianness]}u{size}")
    native_bytes = words.astype(f"=u{size}").view(np.uint8)
    values: Any = to_public_tensor(native_bytes).view(_find_dtype(embed_dtype))
    tensor: torch.Tensor = values.reshape(tuple(shape))
    return tensor


def _find_dtype(name: EmbedDType) -> Any:
    """Return the dtype of torch, or that of numpy without torch."""
    if import_torch() is not None:
        return EMBED_DTYPE_TO_TORCH_DTYPE[name]
    import ml_dtypes

    name_there = DTYPE_NAMES.get(name, name)
    return np.dtype(getattr(ml_dtypes, name_there, name_there))


def decode_pooling_output(items: Sequence[MetadataItem], body: bytes) -> list[torch.Tensor]:
    """Return the tensors of a binary body in the order of the inputs."""
    return [
        binary2tensor(body[item.start : item.end], item.shape, item.embed_dtype, item.endianness)
        for item in sorted(items, key=lambda item: item.index)
    ]


decoding_pooling_output = decode_pooling_output  # its name in older releases of vLLM

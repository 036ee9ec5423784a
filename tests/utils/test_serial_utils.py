"""Decoding of binary embeddings equals what the server encodes."""

from __future__ import annotations

import sys
from typing import get_args

import numpy as np
import pytest
import torch

from cenote.api.encoding import cast_to_bytes, make_binary_body
from cenote.utils.binary_formats import EmbedDType, Endianness
from cenote.utils.serial_utils import (
    EMBED_DTYPE_TO_N_BYTES,
    EMBED_DTYPE_TO_TORCH_DTYPE,
    EMBED_DTYPES,
    MetadataItem,
    binary2tensor,
    build_metadata_items,
    decode_pooling_output,
)

VALUES = np.array([[0.5, -0.25, 1.0], [0.0, 2.0, -0.125]], dtype=np.float32)  # exact in every format


def test_every_format_of_the_server_can_be_decoded() -> None:
    assert tuple(EMBED_DTYPES) == tuple(EMBED_DTYPE_TO_TORCH_DTYPE) == get_args(EmbedDType)
    assert {name: info.nbytes for name, info in EMBED_DTYPES.items()} == EMBED_DTYPE_TO_N_BYTES


@pytest.mark.parametrize("endianness", get_args(Endianness))
@pytest.mark.parametrize("dtype", get_args(EmbedDType))
def test_a_body_is_decoded_with_and_without_its_metadata(dtype: EmbedDType, endianness: Endianness) -> None:
    body, entries = make_binary_body(VALUES, dtype, endianness)
    items = [MetadataItem(**entry) for entry in reversed(entries)]
    content = bytes(body)

    decoded = decode_pooling_output(items=items, body=content)
    assumed = build_metadata_items(embed_dtype=dtype, endianness=endianness, shape=(3,), n_request=2)

    assert [row.dtype for row in decoded] == [EMBED_DTYPE_TO_TORCH_DTYPE[dtype]] * 2
    assert torch.stack([row.float() for row in decoded]).tolist() == VALUES.tolist()
    assert torch.stack([row.float() for row in decode_pooling_output(assumed, content)]).tolist() == VALUES.tolist()


def test_the_byte_order_matters() -> None:
    swapped: Endianness = "big" if sys.byteorder == "little" else "little"
    content = bytes(cast_to_bytes(VALUES, "float32", "native"))

    assert binary2tensor(content, (-1,), "float32", swapped).tolist() != VALUES.ravel().tolist()

"""Encoded vectors equal what torch writes, and decode to the same values."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
import torch

from cenote.api.encoding import (
    MAX_METADATA_BYTES,
    EmbedDType,
    Endianness,
    cast_to_bytes,
    check_metadata_size,
    encode_base64,
    encode_base64_rows,
    encode_json,
    make_binary_body,
    make_metadata_header,
    quantize_vectors,
    stack_results,
)
from cenote.errors import BadRequest
from cenote.protocol.results import PoolResult, PoolResultBatch

TORCH_TYPES: dict[EmbedDType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
NARROW = [dtype for dtype in TORCH_TYPES if dtype != "float32"]
NO_IDS = np.zeros(0, dtype=np.int32)
# widened by torch: numpy warns of signalling NaNs where the processor reports them, as ARM does
ALL_HALVES = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.float16).float().numpy()


def to_integers(data: bytes | memoryview, dtype: EmbedDType, endianness: Endianness = "native") -> np.ndarray[Any, Any]:
    """Return the bits of each element as an integer in native byte order."""
    order = {"native": "=", "big": ">", "little": "<"}[endianness]
    integer = np.dtype(f"{order}u{TORCH_TYPES[dtype].itemsize}")
    return np.frombuffer(data, dtype=integer).astype(integer.newbyteorder("="))


def cast_with_torch(array: np.ndarray[Any, Any], dtype: EmbedDType) -> np.ndarray[Any, Any]:
    return to_integers(torch.from_numpy(array).to(TORCH_TYPES[dtype]).view(torch.uint8).numpy().tobytes(), dtype)


def assert_like_torch(array: np.ndarray[Any, Any], dtype: EmbedDType) -> None:
    ours, theirs = to_integers(cast_to_bytes(array, dtype, "native"), dtype), cast_with_torch(array, dtype)
    if dtype in ("float16", "bfloat16"):  # NaN bits depend on the processor
        is_nan = np.isnan(array)
        assert torch.from_numpy(ours[is_nan].view(np.int16)).view(TORCH_TYPES[dtype]).isnan().all()
        ours, theirs, array = ours[~is_nan], theirs[~is_nan], array[~is_nan]
    different = np.flatnonzero(ours != theirs)
    assert not different.size, [(array[i], hex(ours[i]), hex(theirs[i])) for i in different[:5]]


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.float32)


def unit_vectors(num: int, width: int) -> np.ndarray[Any, Any]:
    rows = np.random.default_rng(5).standard_normal((num, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_module_does_not_import_torch() -> None:
    code = "import sys, cenote.api.encoding; print('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"]


# JSON numbers


def test_json_numbers_are_shortest_and_non_finite_values_are_null() -> None:
    assert bytes(encode_json(floats(0.1, -0.0, 1, np.nan, np.inf, -np.inf))) == b"[0.1,-0.0,1.0,null,null,null]"
    assert bytes(encode_json(floats(1, 2, 3, 4).reshape(2, 2))) == b"[[1.0,2.0],[3.0,4.0]]"
    assert bytes(encode_json(floats())) == b"[]"


def test_json_numbers_round_trip_in_a_response() -> None:
    vectors = unit_vectors(3, 384)

    reply = msgspec.json.encode(
        {"data": [{"index": i, "embedding": encode_json(row)} for i, row in enumerate(vectors)]}
    )

    read = [item["embedding"] for item in json.loads(reply)["data"]]
    assert (np.array(read, dtype=np.float32) == vectors).all()


# casts


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_random_bit_patterns_are_cast_as_torch_does(dtype: EmbedDType) -> None:
    bits = np.random.default_rng(11).integers(0, 2**32, size=1 << 20, dtype=np.uint64).astype(np.uint32)

    assert_like_torch(bits.view(np.float32), dtype)


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_every_exponent_with_every_upper_mantissa_and_adjacent_values_is_cast_as_torch_does(dtype: EmbedDType) -> None:
    upper = np.arange(2**16, dtype=np.uint32) << 16  # every tie of bfloat16 and of the eight bit types is among these
    bits = np.concatenate([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])

    assert_like_torch(bits.view(np.float32), dtype)


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_all_halves_and_the_ties_between_them_are_cast_as_torch_does(dtype: EmbedDType) -> None:
    bits = ALL_HALVES.view(np.uint32)
    near = [bits + np.uint32(step) for step in (0, 1, 0xFFF, 0x1000, 0x1001)]
    finite = np.sort(ALL_HALVES[np.isfinite(ALL_HALVES)])
    between = (finite[1:] + finite[:-1]) / 2  # the ties of subnormals too

    assert_like_torch(np.concatenate([*near, between.view(np.uint32)]).view(np.float32), dtype)


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        ("float16", 1.0, 0x3C00),
        ("float16", 65519.0, 0x7BFF),  # the largest, 65504, is nearer
        ("float16", 65520.0, 0x7C00),
        ("float16", 2.0**-24, 0x0001),
        ("float16", 2.0**-25, 0x0000),  # half the smallest, to even
        ("bfloat16", 1.0, 0x3F80),
        ("bfloat16", 1.00390625, 0x3F80),  # a tie, to even
        ("bfloat16", 1.01171875, 0x3F82),  # a tie, to even
        ("bfloat16", 3.4028235e38, 0x7F80),
        ("bfloat16", -0.0, 0x8000),
        ("bfloat16", -np.inf, 0xFF80),
        ("bfloat16", np.nan, 0x7FC0),
        ("fp8_e4m3", 448.0, 0x7E),  # the largest
        ("fp8_e4m3", 500.0, 0x7E),  # this type has no infinity
        ("fp8_e4m3", -np.inf, 0xFE),
        ("fp8_e4m3", np.nan, 0x7F),
        ("fp8_e4m3", 2.0**-9, 0x01),
        ("fp8_e4m3", 2.0**-10, 0x00),
        ("fp8_e5m2", 57344.0, 0x7B),  # the largest
        ("fp8_e5m2", 61440.0, 0x7C),
        ("fp8_e5m2", -np.inf, 0xFC),
        ("fp8_e5m2", np.nan, 0x7F),
        ("fp8_e5m2", -(2.0**-16), 0x81),
    ],
)
def test_known_values_have_known_bits(dtype: EmbedDType, value: float, bits: int) -> None:
    assert to_integers(cast_to_bytes(floats(value), dtype, "native"), dtype).tolist() == [bits]


@pytest.mark.parametrize("endianness", get_args(Endianness))
@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_every_dtype_in_every_byte_order(dtype: EmbedDType, endianness: Endianness) -> None:
    vectors = unit_vectors(4, 10)

    data = cast_to_bytes(vectors, dtype, endianness)

    assert len(data) == vectors.size * TORCH_TYPES[dtype].itemsize
    assert (to_integers(data, dtype, endianness) == cast_with_torch(vectors, dtype)).all()


def test_byte_orders_have_known_bytes() -> None:
    assert cast_to_bytes(floats(1), "float32", "big") == b"\x3f\x80\x00\x00"
    assert cast_to_bytes(floats(1), "float32", "little") == b"\x00\x00\x80\x3f"
    assert cast_to_bytes(floats(1), "bfloat16", "big") == b"\x3f\x80"
    assert cast_to_bytes(floats(1), "float16", "little") == b"\x00\x3c"
    assert cast_to_bytes(floats(1), "fp8_e5m2", "big") == cast_to_bytes(floats(1), "fp8_e5m2", "little") == b"\x3c"


@pytest.mark.parametrize("dtype", NARROW)
def test_the_input_array_is_not_modified_and_may_be_read_only(dtype: EmbedDType) -> None:
    vector = np.frombuffer(floats(0.1, -np.inf, np.nan).tobytes(), dtype=np.float32)

    cast_to_bytes(vector, dtype, "big")

    assert vector[:2].tolist() == floats(0.1, -np.inf).tolist()


# base64


@pytest.mark.parametrize("endianness", get_args(Endianness))
@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_base64_text_decodes_to_the_cast_bytes(dtype: EmbedDType, endianness: Endianness) -> None:
    vector = unit_vectors(1, 384)[0]

    text = json.loads(bytes(encode_base64(vector, dtype, endianness)))

    assert base64.b64decode(text, validate=True) == cast_to_bytes(vector, dtype, endianness)


@pytest.mark.parametrize("dtype", ["float32", "float16", "fp8_e4m3"])
@pytest.mark.parametrize("width", [0, 1, 6, 8])  # with all remainders by three
def test_rows_encoded_together_equal_rows_encoded_separately(width: int, dtype: EmbedDType) -> None:
    rows = np.random.default_rng(0).standard_normal((3, width)).astype(np.float32)

    texts = encode_base64_rows(rows, dtype, "big")

    assert [b'"%s"' % bytes(text) for text in texts] == [bytes(encode_base64(row, dtype, "big")) for row in rows]


def test_only_vectors_of_one_size_are_stacked() -> None:
    def results(*shapes: tuple[int, ...]) -> list[PoolResult]:
        return [PoolResult(np.full(shape, index, np.float32), NO_IDS, 1, 1) for index, shape in enumerate(shapes)]

    rows = stack_results(results((2,), (2,)))

    assert rows is not None and rows.tolist() == [[0, 0], [1, 1]]
    assert stack_results(results((2,), (3,))) is None
    assert stack_results(results((2, 2), (2, 2))) is None
    assert stack_results([]) is None
    rows = np.ones((2, 3), np.float32)
    assert stack_results(PoolResultBatch(results((3,), (3,)), rows)) is rows


# bytes


def test_the_entries_of_a_binary_body_give_its_byte_ranges() -> None:
    arrays = [unit_vectors(1, 6)[0], unit_vectors(3, 4), unit_vectors(1, 2)[0]]

    body, entries = make_binary_body(arrays, "float16", "big")

    assert entries[1] == {
        "index": 1, "embed_dtype": "float16", "endianness": "big", "start": 12, "end": 36, "shape": [3, 4]
    }  # fmt: skip
    assert [entry["end"] for entry in entries] == [12, 36, len(body)]
    for entry, array in zip(entries, arrays, strict=True):
        read = np.frombuffer(body[entry["start"] : entry["end"]], dtype=">f2").reshape(entry["shape"])
        assert (read == array.astype(np.float16)).all()


@pytest.mark.parametrize("endianness", get_args(Endianness))
@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_a_binary_body_is_the_concatenation_of_its_casts(dtype: EmbedDType, endianness: Endianness) -> None:
    arrays = list(unit_vectors(5, 8))

    body, entries = make_binary_body(arrays, dtype, endianness)

    assert body == b"".join(cast_to_bytes(array, dtype, endianness) for array in arrays)
    assert entries[-1]["end"] == len(body)


def test_a_binary_body_without_results_is_empty() -> None:
    assert make_binary_body([], "float32", "native") == (b"", [])


def test_the_metadata_header_is_ascii_json_for_any_model_name() -> None:
    _, entries = make_binary_body(list(unit_vectors(2, 8)), "float32", "native")
    usage = {"prompt_tokens": 7, "total_tokens": 7}

    header = make_metadata_header(entries, id="embd-1", created=1760000000, model="modèle\n", usage=usage)

    assert header.isascii() and header.isprintable()
    assert json.loads(header) == {
        "id": "embd-1", "created": 1760000000, "model": "modèle\n", "data": entries, "usage": usage
    }  # fmt: skip


def test_a_metadata_header_over_six_kilobytes_is_refused_with_alternatives() -> None:
    _, entries = make_binary_body(list(unit_vectors(64, 384)), "float32", "native")
    usage = {"prompt_tokens": 7, "total_tokens": 7}

    fits = make_metadata_header(entries[:50], id="embd-1", created=1760000000, model="m", usage=usage)
    with pytest.raises(BadRequest, match=r"6,\d\d\d bytes .* 64 items.* 6,144 .*bytes_only.*base64") as refused:
        make_metadata_header(entries, id="embd-1", created=1760000000, model="m", usage=usage)

    assert len(fits) <= MAX_METADATA_BYTES
    assert refused.value.param == "encoding_format"


def test_the_smallest_metadata_size_is_checked_in_advance() -> None:
    check_metadata_size(50, "float32", "native")

    with pytest.raises(BadRequest, match=r"at least 1\d\d,\d\d\d bytes .* 2,048 items"):
        check_metadata_size(2048, "float32", "native")


# integers


def test_int8_and_uint8_are_symmetric_and_clipped() -> None:
    matrix = floats(-1, -0.5, 0, 0.004, 0.5, 1, 1.5, -1.5).reshape(1, -1)

    assert quantize_vectors(matrix, "int8").tolist() == [[-127, -64, 0, 1, 64, 127, 127, -128]]
    assert quantize_vectors(matrix, "uint8").tolist() == [[0, 64, 128, 128, 191, 255, 255, 0]]


def test_bits_are_set_for_values_from_zero_with_the_first_value_highest() -> None:
    matrix = floats(0, -1, 0.5, -0.0, -1e-9, 1, -2, 3, *[-1] * 8).reshape(1, -1)

    assert quantize_vectors(matrix, "ubinary").tolist() == [[0b10110101, 0]]
    assert quantize_vectors(matrix, "binary").tolist() == [[0b10110101 - 128, -128]]

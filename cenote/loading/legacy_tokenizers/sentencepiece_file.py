"""Parse SentencePiece model files (protocol buffers) without the sentencepiece library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cenote.errors import LoadError
from cenote.loading.checkpoint import check_not_empty

UNIGRAM, BPE = 1, 2
CONTROL, USER_DEFINED = 3, 4


@dataclass(frozen=True, slots=True)
class SentencePiece:
    text: str
    score: float = 0.0
    kind: int = 1


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The parts of a SentencePiece model file that a tokenizer needs."""

    pieces: list[SentencePiece]
    algorithm: int  # UNIGRAM or BPE
    unk_id: int
    charsmap: bytes  # precompiled character normalisation; empty if there is none
    adds_dummy_prefix: bool = True  # whether a space is put before every text
    removes_extra_spaces: bool = True


def read_sentencepiece(path: Path) -> SentencePieceModel:
    check_not_empty(path)
    data = path.read_bytes()
    try:
        model = _parse_model(data)
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise LoadError(
            f"{path} is not a SentencePiece model, or truncated ({len(data)} bytes); download it again"
        ) from error
    if model.algorithm not in (UNIGRAM, BPE):
        raise LoadError(f"{path} was trained as type {model.algorithm}; only unigram (1) and BPE (2) are supported")
    return model


def _parse_model(data: bytes) -> SentencePieceModel:
    pieces: list[SentencePiece] = []
    trainer: dict[int, int | bytes] | None = None
    normalizer: dict[int, int | bytes] = {}
    for number, value in _iter_fields(data):
        if number == 1:
            pieces.append(_parse_piece(value))
        elif number == 2:
            trainer = dict(_iter_fields(value))
        elif number == 3:
            normalizer = dict(_iter_fields(value))
    if trainer is None or not pieces:  # the trainer spec follows the pieces; without it the file is truncated
        raise ValueError
    algorithm, unk_id, charsmap = trainer.get(3, UNIGRAM), trainer.get(40, 0), normalizer.get(2, b"")
    if not isinstance(algorithm, int) or not isinstance(unk_id, int) or not isinstance(charsmap, bytes):
        raise TypeError
    flags = [normalizer.get(field, 1) != 0 for field in (3, 4)]
    return SentencePieceModel(pieces, algorithm, unk_id, charsmap, *flags)


def _parse_piece(data: int | bytes) -> SentencePiece:
    values = dict(_iter_fields(data))
    text, score, kind = values.get(1, b""), values.get(2, struct.pack("<f", 0.0)), values.get(3, 1)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise TypeError
    return SentencePiece(text.decode(), struct.unpack("<f", score)[0], kind)


def _iter_fields(data: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message by number: varints as int, everything else as bytes."""
    if isinstance(data, int):
        raise TypeError
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        wire_type = tag & 7
        if wire_type == 0:
            value, position = _read_varint(data, position)
            yield tag >> 3, value
            continue
        if wire_type == 2:
            size, position = _read_varint(data, position)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError
        if position + size > len(data):
            raise ValueError
        yield tag >> 3, data[position : position + size]
        position += size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a base-128 varint; return its value and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise ValueError

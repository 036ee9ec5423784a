"""Properties of characters for the native encoder, taken from the `tokenizers` library itself, in pages of 256."""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tokenizers
from tokenizers import normalizers, pre_tokenizers

# as in chars.h
MAX_REPLACEMENT_BYTES = 20
CHAR_INFO = struct.Struct(f"3B{MAX_REPLACEMENT_BYTES + 1}s")
LETTER, NUMBER, SPACE, UNCERTAIN, REPLACED, STARTS_KEY, JOINS, JOINS_NEXT = (1 << bit for bit in range(8))
CLASSES = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s"}
SURROGATES = range(0xD800, 0xE000)  # not in valid text
# code points that compose with the one before them; those of Hangul do so without a decomposition
HANGUL_VOWELS_AND_FINALS = frozenset((*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)))
# in the grapheme of the character before, besides marks and format characters: Thai and Lao vowels, half-width voicing
# marks, modifiers of emoji
JOINING = frozenset((0x0E33, 0x0EB3, 0xFF9E, 0xFF9F, *range(0x1F3FB, 0x1F400), *range(0x1F1E6, 0x1F200)))
# letters that belong to the grapheme of the character after
PREPENDED = frozenset((0x0D4E, 0x111C2, 0x111C3, 0x1193F, 0x11941, 0x11A3A, *range(0x11A84, 0x11A8A), 0x11D46, 0x11F02))

PageFunction = Callable[[int], bytes]


def make_byte_level_pages(normalizer: Any) -> PageFunction:
    """Return a function that computes a page for byte-level BPE; `normalizer` is NFC or None."""
    splits = {
        flag: pre_tokenizers.Split(tokenizers.Regex(f"{pattern}+"), "removed") for flag, pattern in CLASSES.items()
    }

    def make_page(page: int) -> bytes:
        codes = range(256 * page, 256 * page + 256)
        chars = "".join("\x00" if code in SURROGATES else chr(code) for code in codes)
        flags = [0] * 256
        for flag, split in splits.items():
            others = {row for _, (start, end) in split.pre_tokenize_str(chars) for row in range(start, end)}
            for row in set(range(256)) - others:
                flags[row] |= flag
        classes = (0, 0) if normalizer is None else None
        return b"".join(
            CHAR_INFO.pack(flag | uncertain, combining, 0, b"")
            for flag, (uncertain, combining) in zip(
                flags, (classes or _nfc_info(code, normalizer) for code in codes), strict=True
            )
        )

    return make_page


def _nfc_info(code: int, normalizer: Any) -> tuple[int, int]:
    """Return UNCERTAIN or 0, and the canonical combining class."""
    if code in SURROGATES:
        return UNCERTAIN, 0
    char = chr(code)
    is_certain = (
        code not in _find_composing_chars()
        and unicodedata.category(char) != "Cn"  # in a later version of Unicode, it may compose
        and normalizer.normalize_str(char) == char
    )
    return 0 if is_certain else UNCERTAIN, unicodedata.combining(char)


@cache
def _find_composing_chars() -> frozenset[int]:
    """Return the code points that may compose with the one before them."""
    decompositions = (unicodedata.decomposition(chr(code)) for code in range(0x30000))
    seconds = (text.split()[-1] for text in decompositions if " " in text and not text.startswith("<"))
    return HANGUL_VOWELS_AND_FINALS.union(int(code, 16) for code in seconds)


def make_sentencepiece_pages(char_map: bytes) -> PageFunction:
    """Return a function that computes a page for SentencePiece tokenizers; `char_map` may be empty."""
    white_space = pre_tokenizers.WhitespaceSplit()
    precompiled = normalizers.Precompiled(char_map) if char_map else None
    trie = _read_trie(char_map)

    def make_info(code: int) -> bytes:
        if code in SURROGATES:
            return CHAR_INFO.pack(UNCERTAIN, 0, 0, b"")
        char = chr(code)
        flags = SPACE if len(white_space.pre_tokenize_str(f"a{char}a")) == 2 else 0
        if precompiled is None:
            return CHAR_INFO.pack(flags, 0, 0, b"")
        replacement = precompiled.normalize_str(char)
        data, num_bytes = replacement.encode(), len(char.encode())
        # the C code has buffers of four bytes per byte of text, one of which may be a space before a word
        if len(data) > min(MAX_REPLACEMENT_BYTES, 3 * num_bytes) or any(x != " " and x.isspace() for x in replacement):
            flags |= UNCERTAIN
            data = b""
        flags |= REPLACED * (replacement != char) | STARTS_KEY * _has_prefix(trie, char.encode())
        return CHAR_INFO.pack(flags | _grapheme_flags(code), 0, len(data), data)

    def make_page(page: int) -> bytes:
        return b"".join(make_info(code) for code in range(256 * page, 256 * page + 256))

    return make_page


def _grapheme_flags(code: int) -> int:
    """Return JOINS and JOINS_NEXT where they are possible; a superset."""
    category = unicodedata.category(chr(code))
    joins = category in ("Mn", "Mc", "Me", "Cf", "Cn") or code in JOINING
    joins_next = category in ("Cf", "Cn") or code in PREPENDED
    return JOINS * joins | JOINS_NEXT * joins_next


def _read_trie(char_map: bytes) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the double array of a character map: its size in bytes comes first, the replacements last."""
    size = struct.unpack_from("<I", char_map)[0] if char_map else 0
    return np.frombuffer(char_map, dtype="<u4", count=size // 4, offset=4 if char_map else 0)


def _has_prefix(trie: np.ndarray[Any, np.dtype[np.uint32]], data: bytes) -> bool:
    """Return whether a key of the double array starts with `data`."""
    node = _offset(int(trie[0]))
    for byte in data:
        node ^= byte
        unit = int(trie[node]) if node < len(trie) else 0
        if unit & 0x800000FF != byte:  # the label, and whether it is a value
            return False
        node ^= _offset(unit)
    return True


def _offset(unit: int) -> int:
    return unit >> 10 << (unit >> 6 & 8)

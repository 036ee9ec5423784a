"""Native WordPiece encoder for BERT tokenizers: the same ids as the `tokenizers` library, many times as fast.

Compiled from wordpiece.c at install time if a C compiler is available; otherwise the library is used.
"""

from __future__ import annotations

import ctypes
import struct
import unicodedata
import weakref
from array import array
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from cenote.inputs.native_encoding import NUM_PAGES, PADDING, CharPages, NativeEncoding
from cenote.inputs.subword.library import open_library

IN_WORD, SPACE, PUNCTUATION, REMOVED, FALLBACK = range(5)  # classes of code points, as in wordpiece.c
MAX_NORMALIZED_BYTES = 11  # UTF-8 bytes of one normalized code point
CHAR_INFO = struct.Struct(f"5B{MAX_NORMALIZED_BYTES}s")
PAGES_MISSING, OUT_OF_MEMORY = -1, -2
MAX_CACHED_PAGES = 1024  # of 4 KiB


class NormalizerSettings(NamedTuple):
    """The settings of the library's BertNormalizer."""

    clean_text: bool
    handle_chinese_chars: bool
    strip_accents: bool | None
    lowercase: bool


class NativeWordPiece:
    """Native encoder of one tokenizer; thread-safe."""

    def __init__(self, raw: tokenizers.Tokenizer, library: ctypes.CDLL, vocabulary: dict[str, int]) -> None:
        model = raw.model
        self._library = library
        settings = NormalizerSettings(*(getattr(raw.normalizer, name) for name in NormalizerSettings._fields))
        self._missing_pages = ctypes.create_string_buffer(NUM_PAGES)
        prefix = model.continuing_subword_prefix.encode()
        self._vocabulary = library.cenote_wordpiece_new(
            *_concat_utf8(vocabulary)[:2],
            array("i", vocabulary.values()).tobytes(),
            len(vocabulary),
            *(prefix, len(prefix)),
            *(vocabulary[model.unk_token], model.max_input_chars_per_word),
            *_concat_utf8(token.content for token in raw.get_added_tokens_decoder().values()),
            *_concat_utf8(_normalize_added_tokens(raw)),
        )
        if not self._vocabulary:
            raise MemoryError(f"cannot allocate memory for a vocabulary of {len(vocabulary)} tokens")
        # not at exit: a daemon thread may still be encoding
        weakref.finalize(self, library.cenote_wordpiece_free, self._vocabulary).atexit = False
        self._pages = CharPages(partial(library.cenote_wordpiece_page, self._vocabulary), partial(_make_page, settings))

    def encode(self, texts: Sequence[str]) -> NativeEncoding:
        """Return the ids of all texts; releases the GIL."""
        joined = "".join((*texts, PADDING))
        data = joined.encode()
        lengths, offsets = array("q", map(len, texts)), array("q", bytes(8 * len(texts) + 8))
        ids = np.empty(len(data) + 1, dtype=np.int32)  # every id is for at least one byte
        num_fallback = self._library.cenote_wordpiece_encode(
            self._vocabulary,
            data,
            lengths.buffer_info()[0],
            len(texts),
            joined.isascii(),
            ctypes.addressof(ctypes.c_char.from_buffer(ids.data)),  # much faster than ndarray.ctypes
            offsets.buffer_info()[0],
            self._missing_pages,
        )
        if num_fallback == PAGES_MISSING:
            self._pages.load_missing(self._missing_pages.raw)
            return self.encode(texts)
        if num_fallback == OUT_OF_MEMORY:
            raise MemoryError(f"cannot allocate memory to encode {len(texts)} texts")
        fallback = [index for index, length in enumerate(lengths) if length < 0] if num_fallback else []
        return NativeEncoding(ids[: offsets[-1]], np.frombuffer(offsets, dtype=np.int64), fallback)


@lru_cache(maxsize=MAX_CACHED_PAGES)
def _make_page(settings: NormalizerSettings, page: int) -> bytes:
    """Return the CharInfo of 256 code points, from the library's own normalizer and pre-tokenizer.

    Pages are cached, since models share the few settings that there are.
    """
    normalizer = tokenizers.normalizers.BertNormalizer(**settings._asdict())
    pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    can_reorder_marks = settings.lowercase if settings.strip_accents is None else settings.strip_accents
    codes = range(256 * page, 256 * page + 256)
    return b"".join(_make_char_info(code, normalizer, pre_tokenizer, can_reorder_marks) for code in codes)


def _make_char_info(code_point: int, normalizer: Any, pre_tokenizer: Any, can_reorder_marks: bool) -> bytes:
    """Return the CharInfo of a code point.

    Only the order of combining marks depends on more than one code point: texts with such marks fall back.
    """
    fallback = CHAR_INFO.pack(FALLBACK, 0, 0, 0, 0, b"")
    if 0xD800 <= code_point < 0xE000:  # surrogates are not in valid text
        return fallback
    char = chr(code_point)
    normalized = normalizer.normalize_str(char)
    if can_reorder_marks and any(
        unicodedata.combining(mark) or unicodedata.category(mark) == "Cn" for mark in normalized
    ):
        return fallback
    words = [word for word, _ in pre_tokenizer.pre_tokenize_str(f"a{normalized}a")]
    data, before, after = normalized.encode(), 0, 0
    if words == ["aa"]:
        kind, word = REMOVED, ""
    elif words == [f"a{normalized}a"]:
        kind, word = IN_WORD, normalized
    elif words == ["a", "a"]:
        kind, word = SPACE, ""
    elif len(words) == 3 and words[0] == words[2] == "a":
        kind, word = PUNCTUATION, words[1]
        before, after = (len(part.encode()) for part in normalized.split(word))
    else:
        return fallback
    num_bytes = len(char.encode())
    # the C code has buffers of three bytes and one id per byte of text
    if len(data) > min(MAX_NORMALIZED_BYTES, 3 * num_bytes) or len(word) > num_bytes:
        return fallback
    return CHAR_INFO.pack(kind, len(data), len(word), before, after, data)


def load_native_wordpiece(raw: tokenizers.Tokenizer) -> NativeWordPiece | None:
    """Return a native encoder if the tokenizer is a BERT WordPiece tokenizer and the library was compiled."""
    types = (tokenizers.normalizers.BertNormalizer, tokenizers.pre_tokenizers.BertPreTokenizer)
    if (type(raw.normalizer), type(raw.pre_tokenizer)) != types or type(raw.model) is not tokenizers.models.WordPiece:
        return None
    if raw.truncation is not None or raw.padding is not None or "" in _normalize_added_tokens(raw):
        return None
    library = load_library()
    vocabulary = {} if library is None else raw.get_vocab(with_added_tokens=False)
    # without an unknown token, the library raises its own error
    return NativeWordPiece(raw, library, vocabulary) if library and raw.model.unk_token in vocabulary else None


def is_compiled() -> bool:
    return load_library() is not None


def _normalize_added_tokens(raw: tokenizers.Tokenizer) -> list[str]:
    """Return the added tokens that are matched in normalized text, normalized themselves."""
    added = raw.get_added_tokens_decoder().values()
    return [raw.normalizer.normalize_str(token.content) for token in added if token.normalized]


def _concat_utf8(texts: Iterable[str]) -> tuple[bytes, bytes, int]:
    encoded = [text.encode() for text in texts]
    return b"".join(encoded), array("Q", accumulate(map(len, encoded))).tobytes(), len(encoded)


@cache
def load_library() -> ctypes.CDLL | None:
    if (library := open_library("_wordpiece")) is None:
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    texts = (ctypes.c_char_p, ctypes.c_char_p, integer)
    new, page, encode = (getattr(library, f"cenote_wordpiece_{name}") for name in ("new", "page", "encode"))
    new.argtypes = (*texts[:2], ctypes.c_char_p, integer, *texts[::2], ctypes.c_int32, integer, *texts, *texts)
    new.restype = pointer
    page.argtypes = (pointer, integer, ctypes.c_char_p)
    encode.argtypes = (pointer, ctypes.c_char_p, pointer, integer, ctypes.c_int, pointer, pointer, pointer)
    encode.restype = integer
    library.cenote_wordpiece_free.argtypes = (pointer,)
    library.cenote_wordpiece_free.restype = None
    return library

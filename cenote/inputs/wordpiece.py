"""BERT's tokenizers in our own code, compiled at install where a compiler is: the same ids, many times as fast."""

from __future__ import annotations

import ctypes
import logging
import struct
import sys
import threading
import unicodedata
import weakref
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

logger = logging.getLogger("cenote")

NUM_PAGES = 0x1100  # of 256 letters each: all of Unicode
IN_WORD, SPACE, PUNCTUATION, REMOVED, FALLBACK = range(5)  # what becomes of a letter; wordpiece.c has the same
MAX_NORMALIZED_BYTES = 11  # that a letter may become
CHAR_INFO = struct.Struct(f"5B{MAX_NORMALIZED_BYTES}s")
PAGES_MISSING, OUT_OF_MEMORY = -1, -2


class NativeEncoding(NamedTuple):
    ids: np.ndarray[Any, np.dtype[np.int32]]
    cu_seqlens: np.ndarray[Any, np.dtype[np.int64]]  # of every text's first id, and the end
    fallback_indices: list[int]  # texts that the library must read; they have no ids here


class NativeWordPiece:
    """The reader of one tokenizer's texts; any number of threads may use it at once."""

    def __init__(self, raw: tokenizers.Tokenizer, library: ctypes.CDLL, vocabulary: dict[str, int]) -> None:
        model = raw.model
        self._library = library
        self._normalizer, self._pre_tokenizer = raw.normalizer, raw.pre_tokenizer
        self._missing_pages, self._loaded_pages = ctypes.create_string_buffer(NUM_PAGES), set[int]()
        self._load_lock = threading.Lock()
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
            raise MemoryError(f"no memory for a vocabulary of {len(vocabulary)} tokens")
        # at exit a thread may still be reading: then the system takes it all
        weakref.finalize(self, library.cenote_wordpiece_free, self._vocabulary).atexit = False
        self._load_pages([0])

    def encode(self, texts: Sequence[str]) -> NativeEncoding:
        """The ids of all texts; runs outside the interpreter lock."""
        joined = "".join(texts)
        data = joined.encode()
        lengths, offsets = array("q", map(len, texts)), array("q", bytes(8 * len(texts) + 8))
        ids = np.empty(len(data) + 1, dtype=np.int32)  # no id stands for less than a byte
        num_left = self._library.cenote_wordpiece_encode(
            self._vocabulary,
            data,
            lengths.buffer_info()[0],
            len(texts),
            joined.isascii(),
            ctypes.addressof(ctypes.c_char.from_buffer(ids.data)),  # far faster than to ask numpy
            offsets.buffer_info()[0],
            self._missing_pages,
        )
        if num_left == PAGES_MISSING:
            self._load_pages([page for page, wanted in enumerate(self._missing_pages.raw) if wanted])
            return self.encode(texts)
        if num_left == OUT_OF_MEMORY:
            raise MemoryError(f"no memory for the letters of {len(texts)} texts")
        left = [row for row, length in enumerate(lengths) if length < 0] if num_left else []
        return NativeEncoding(ids[: offsets[-1]], np.frombuffer(offsets, dtype=np.int64), left)

    def _load_pages(self, pages: Iterable[int]) -> None:
        """Ask the library what becomes of the letters of some pages, where that is not known yet."""
        with self._load_lock:
            for page in pages:
                if page in self._loaded_pages:
                    continue
                letters = b"".join(self._char_info(code) for code in range(256 * page, 256 * page + 256))
                if not self._library.cenote_wordpiece_page(self._vocabulary, page, letters):
                    raise MemoryError("no memory for a page of letters")
                self._loaded_pages.add(page)

    def _char_info(self, code_point: int) -> bytes:
        """The entry of one letter. All but the order of combining marks is decided letter by letter."""
        unsure = CHAR_INFO.pack(FALLBACK, 0, 0, 0, 0, b"")
        if 0xD800 <= code_point < 0xE000:  # surrogates: no text has them
            return unsure
        letter = chr(code_point)
        read = self._normalizer.normalize_str(letter)
        if self._can_reorder_marks and any(
            unicodedata.combining(each) or unicodedata.category(each) == "Cn" for each in read
        ):
            return unsure
        words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(f"a{read}a")]
        data, before, after = read.encode(), 0, 0
        if words == ["aa"]:
            kind, word = REMOVED, ""
        elif words == [f"a{read}a"]:
            kind, word = IN_WORD, read
        elif words == ["a", "a"]:
            kind, word = SPACE, ""
        elif len(words) == 3 and words[0] == words[2] == "a":
            kind, word = PUNCTUATION, words[1]
            before, after = (len(part.encode()) for part in read.split(word))
        else:
            return unsure
        num_bytes = len(letter.encode())
        if len(data) > min(MAX_NORMALIZED_BYTES, 3 * num_bytes) or len(word) > num_bytes:  # more than there is room for
            return unsure
        return CHAR_INFO.pack(kind, len(data), len(word), before, after, data)

    @property
    def _can_reorder_marks(self) -> bool:
        strips: bool | None = self._normalizer.strip_accents
        return self._normalizer.lowercase if strips is None else strips


def load_native_wordpiece(raw: tokenizers.Tokenizer) -> NativeWordPiece | None:
    """Ours for a tokenizer, where it is one of BERT's kind and the code is there."""
    kinds = (tokenizers.normalizers.BertNormalizer, tokenizers.pre_tokenizers.BertPreTokenizer)
    if (type(raw.normalizer), type(raw.pre_tokenizer)) != kinds or type(raw.model) is not tokenizers.models.WordPiece:
        return None
    if raw.truncation is not None or raw.padding is not None or "" in _normalize_added_tokens(raw):
        return None
    library = _load_library()
    vocabulary = {} if library is None else raw.get_vocab(with_added_tokens=False)
    # where the unknown token is missing, the library has an error to tell
    return NativeWordPiece(raw, library, vocabulary) if library and raw.model.unk_token in vocabulary else None


def _normalize_added_tokens(raw: tokenizers.Tokenizer) -> list[str]:
    """The added tokens that are looked for in what the letters have become."""
    added = raw.get_added_tokens_decoder().values()
    return [raw.normalizer.normalize_str(token.content) for token in added if token.normalized]


def _concat_utf8(texts: Iterable[str]) -> tuple[bytes, bytes, int]:
    encoded = [text.encode() for text in texts]
    return b"".join(encoded), array("Q", accumulate(map(len, encoded))).tobytes(), len(encoded)


@cache
def _load_library() -> ctypes.CDLL | None:
    built = [Path(__file__).with_name(f"_wordpiece{suffix}") for suffix in EXTENSION_SUFFIXES]
    path = next((path for path in built if path.exists()), None)
    if path is None or sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        logger.debug("%s cannot be used: %s", path, error)
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

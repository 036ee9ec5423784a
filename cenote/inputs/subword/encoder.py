"""Native encoder of one BPE or Unigram tokenizer."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from functools import partial

import numpy as np
import tokenizers

from cenote.inputs.native_encoding import NUM_PAGES, PADDING, CharPages, NativeEncoding, insert_encodings
from cenote.inputs.subword.library import SubwordSpec
from cenote.inputs.subword.vocabulary import Vocabulary

PAGES_MISSING, OUT_OF_MEMORY, IDS_TOO_SMALL = -1, -2, -3  # of a call
NORMALIZE_FIRST = -2  # of a text
SPARE_IDS = 64


class NativeSubword:
    """Native encoder of one tokenizer; thread-safe."""

    def __init__(self, raw: tokenizers.Tokenizer, library: ctypes.CDLL, vocabulary: Vocabulary) -> None:
        self._library = library
        self._normalizer = raw.normalizer
        self._encoder = library.cenote_subword_new(_make_spec(vocabulary))
        if not self._encoder:
            raise MemoryError(f"cannot allocate memory for a vocabulary of {raw.get_vocab_size()} tokens")
        # not at exit: a daemon thread may still be encoding
        weakref.finalize(self, library.cenote_subword_free, self._encoder).atexit = False
        self._pages = CharPages(partial(library.cenote_subword_page, self._encoder), vocabulary.make_page)

    def encode(self, texts: Sequence[str]) -> NativeEncoding:
        """Return the ids of all texts; releases the GIL."""
        encoding, uncertain = self._encode(texts, is_normalized=False)
        if not uncertain:
            return encoding
        # the library normalizes characters whose normalization depends on those around them
        normalized, _ = self._encode([self._normalizer.normalize_str(texts[row]) for row in uncertain], True)
        flat = insert_encodings(encoding.ids, encoding.cu_seqlens, uncertain, normalized.ids, normalized.cu_seqlens)
        left = [uncertain[row] for row in normalized.fallback_indices]
        return NativeEncoding(*flat, sorted(encoding.fallback_indices + left))

    def _encode(self, texts: Sequence[str], is_normalized: bool) -> tuple[NativeEncoding, list[int]]:
        """Return the encoding, and the texts that have to be normalized by the library first."""
        joined = "".join((*texts, PADDING))
        data, is_ascii = joined.encode(), joined.isascii()
        max_ids = len(data) + SPARE_IDS
        while True:
            lengths, offsets = array("q", map(len, texts)), array("q", bytes(8 * len(texts) + 8))
            ids = np.empty(max_ids, dtype=np.int32)
            missing = ctypes.create_string_buffer(0 if is_ascii else NUM_PAGES)
            num_left = self._library.cenote_subword_encode(
                self._encoder,
                data,
                lengths.buffer_info()[0],
                len(texts),
                is_ascii,
                is_normalized,
                ctypes.addressof(ctypes.c_char.from_buffer(ids.data)),  # much faster than ndarray.ctypes
                max_ids,
                offsets.buffer_info()[0],
                missing,
            )
            if num_left == PAGES_MISSING:
                self._pages.load_missing(missing.raw)
            elif num_left == IDS_TOO_SMALL:
                max_ids *= 4
            elif num_left == OUT_OF_MEMORY:
                raise MemoryError(f"cannot allocate memory to encode {len(texts)} texts")
            else:
                break
        left = {row: length for row, length in enumerate(lengths) if length < 0} if num_left else {}
        uncertain = [row for row, status in left.items() if status == NORMALIZE_FIRST]
        fallback = [row for row, status in left.items() if status != NORMALIZE_FIRST]
        return NativeEncoding(ids[: offsets[-1]], np.frombuffer(offsets, dtype=np.int64), fallback), uncertain


def _make_spec(vocabulary: Vocabulary) -> ctypes._Pointer[SubwordSpec]:
    """Return the arguments of the C code; they refer to the arrays of `vocabulary`."""
    arrays = vocabulary.arrays
    addresses = {name: ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value for name, data in arrays.items()}
    counts = {
        "num_pieces": len(arrays.get("piece_ends", b"")) // 8,
        "num_merges": len(arrays.get("merges", b"")) // 12,
        "num_chars": len(arrays.get("char_codes", b"")) // 4,
        "num_raw_added": len(arrays["raw_added_ends"]) // 8,
        "num_normalized_added": len(arrays["normalized_added_ends"]) // 8,
    }
    return ctypes.pointer(
        SubwordSpec(**{name: vocabulary.numbers[name] for name in vocabulary.numbers}, **counts, **addresses)
    )

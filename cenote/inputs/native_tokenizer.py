"""Select the encoder of a tokenizer: native code that gives the same ids as the library, or the library."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import msgspec
import tokenizers

from cenote.inputs.native_encoding import NativeEncoder
from cenote.inputs.subword.components import UnknownTokenizer
from cenote.inputs.subword.encoder import NativeSubword
from cenote.inputs.subword.library import load_library
from cenote.inputs.subword.vocabulary import check_algorithm, read_vocabulary
from cenote.inputs.wordpiece import is_compiled, load_native_wordpiece

logger = logging.getLogger("cenote")

NOT_COMPILED = "no compiler was found at install"
# encoded both ways when a tokenizer is loaded
PROBES = (
    "Hello, world! It's 2024; we'll see: don't, I'VE, they're.",
    "  leading and trailing  spaces \t\n\n and\r\n lines   ",
    "x" * 70 + " " * 9 + "1234567890 3.14 ½ ² Ⅷ -- ... ?!",
    "naïve café cafe\u0301 Ünïcödé Straße ﬁ ㍿ ª",
    "Москва ждёт, ελληνικά, עברית, العَرَبِيَّة, हिन्दी में, ภาษาไทย น้ำ, தமிழ்",
    "你好，世界。日本語です、한국어 텍스트 \u1112\u1161\u11ab",
    "emoji 👍🏽 👩\u200d👧 🇩🇪 ❤\ufe0f \u200b\xad\ufeff\x00\x7f",
    "\u2581meta\u2581 space \u3000wide\xa0space",
    "def f(x):\n    return {'a': x[0] != 1}  # <html> https://example.org/?q=1&r=a_b",
    "A",
    "",
)


class NativeChoice(NamedTuple):
    encoder: NativeEncoder | None
    reason: str  # the algorithm, or why the library is used
    is_known: bool  # whether only the compiled code is missing, if anything


def choose_encoder(raw: tokenizers.Tokenizer) -> NativeChoice:
    """Return the native encoder of a tokenizer, or the reason why there is none, which is logged once."""
    try:
        choice = _load_native_encoder(raw)
    except UnknownTokenizer as error:
        choice = NativeChoice(None, str(error), False)
    except (KeyError, msgspec.MsgspecError) as error:  # of another version of the library
        choice = NativeChoice(None, f"its state cannot be read: {error!r}", False)
    if choice.encoder is None:
        log_once(f"texts are tokenized by the tokenizers library, more slowly than by native code: {choice.reason}")
    return choice


def _load_native_encoder(raw: tokenizers.Tokenizer) -> NativeChoice:
    encoder: NativeEncoder | None
    if isinstance(raw.model, tokenizers.models.WordPiece):
        encoder, name = load_native_wordpiece(raw), "WordPiece"
        if not is_compiled():
            return NativeChoice(None, NOT_COMPILED, True)
        if encoder is None:
            raise UnknownTokenizer("WordPiece with other settings than BERT's")
    else:
        name = check_algorithm(raw)
        library = load_library()
        if library is None:
            return NativeChoice(None, NOT_COMPILED, True)
        encoder = NativeSubword(raw, library, read_vocabulary(raw))
    different = find_difference(raw, encoder, [*PROBES, *_make_token_probes(raw)])
    if different is not None:
        raise UnknownTokenizer(f"native code encodes {different!r} differently")
    return NativeChoice(encoder, name, True)


def find_difference(raw: tokenizers.Tokenizer, encoder: NativeEncoder, texts: Sequence[str]) -> str | None:
    """Return the first text that the native encoder and the library encode differently."""
    encoding = encoder.encode(texts)
    bounds = encoding.cu_seqlens.tolist()
    for row, expected in enumerate(raw.encode_batch(texts, add_special_tokens=False)):
        if (
            row not in encoding.fallback_indices
            and encoding.ids[bounds[row] : bounds[row + 1]].tolist() != expected.ids
        ):
            return texts[row]
    return None


def _make_token_probes(raw: tokenizers.Tokenizer) -> list[str]:
    """Return texts with added tokens, and vocabulary entries spread over all ids."""
    added = [token.content for token in raw.get_added_tokens_decoder().values()][:20]
    size = raw.get_vocab_size()
    tokens = [raw.id_to_token(row) or "" for row in range(0, size, max(1, size // 200))]
    return [
        "a".join(added),
        " ".join(added),
        "a ".join(added),
        " ".join(tokens),
        raw.decode(list(range(0, size, max(1, size // 200)))),
    ]


@cache
def log_once(message: str) -> None:
    logger.info(message)

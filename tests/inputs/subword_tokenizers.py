"""Small tokenizers of every kind that the package encodes itself, and the encodings of the library."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers.models import BPE, Unigram
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Metaspace, PreTokenizer

SPACE = "\u2581"

ADDED = [
    AddedToken("<s>", normalized=False, special=True),
    AddedToken("<s><s>", normalized=False, special=True),
    AddedToken("\n\n", normalized=False),
    AddedToken("Héllo", normalized=True),
    AddedToken("<mask>", normalized=False, lstrip=True, special=True),
    AddedToken("word", normalized=True, single_word=True),
]


def make_byte_bpe(
    pre_tokenizer: PreTokenizer, normalizer: Normalizer | None = None, **options: Any
) -> tokenizers.Tokenizer:
    pieces = sorted(ByteLevel.alphabet())
    merges = [
        ("Ġ", "t"),
        ("h", "e"),
        ("Ġt", "he"),
        ("1", "2"),
        ("12", "3"),
        ("Ġ", "Ġ"),
        ("a", "a"),
        ("aa", "aa"),
        ("l", "l"),
    ]
    merges += [("Ã", "©"), ("Ċ", "Ċ"), ("'", "s"), ("x", "y"), ("y", "z"), ("x", "yz"), ("f", "o"), ("fo", "o")]
    words = ["Ġnot", "reached", "aaa"]  # that no merges build
    vocabulary = {token: row for row, token in enumerate(dict.fromkeys([*pieces, *(a + b for a, b in merges), *words]))}
    raw = tokenizers.Tokenizer(BPE(vocabulary, merges, **options))
    raw.pre_tokenizer = pre_tokenizer
    raw.normalizer = normalizer  # type: ignore[assignment]
    raw.add_tokens(ADDED)
    return raw


def make_char_bpe(*, normalizer: Any, pre_tokenizer: Any, crosses_words: bool = False) -> tokenizers.Tokenizer:
    merges = [
        (SPACE, "t"),
        ("h", "e"),
        (SPACE + "t", "he"),
        (SPACE, SPACE),
        (SPACE * 2, SPACE * 2),
        ("a", "b"),
        ("é", "é"),
    ]
    merges += [("e", SPACE)] if crosses_words else []
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *"abcdefghijklmnopqrstuvwxyzé日1", "<unk>"]
    vocabulary = {token: row for row, token in enumerate(dict.fromkeys([*pieces, *(a + b for a, b in merges)]))}
    raw = tokenizers.Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    raw.normalizer, raw.pre_tokenizer = normalizer, pre_tokenizer
    raw.add_tokens(ADDED)
    return raw


def make_unigram(
    *, normalizer: Any = None, pre_tokenizer: Any = None, byte_fallback: bool = False
) -> tokenizers.Tokenizer:
    pieces = [
        ("<unk>", 0.0),
        (SPACE, -2.0),
        (SPACE + "the", -3.0),
        ("he", -3.5),
        ("t", -3.0),
        ("aa", -4.0),
        ("aaa", -6.0),
    ]
    pieces += [(letter, -5.0 - row / 10) for row, letter in enumerate("abcdehiloqrstuvwxyzé日本e")]
    pieces += [
        (SPACE + "t", -4.0),
        ("a b", 5.0),
        ("日本", -6.0),
        ("ss", -2.5),
        ("s", -1.25),
        ("ab", -7.7),
        ("xy", -10.0),
    ]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)] if byte_fallback else []
    raw = tokenizers.Tokenizer(Unigram(pieces, unk_id=0, byte_fallback=byte_fallback))
    raw.normalizer, raw.pre_tokenizer = normalizer, pre_tokenizer or Metaspace()
    raw.add_tokens(ADDED)
    return raw

"""The native WordPiece encoder gives the same ids as the `tokenizers` library."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import Whitespace

from cenote.errors import BadRequest
from cenote.inputs import wordpiece as subject
from cenote.inputs.tokenizer import Tokenizer
from tests.inputs.conftest import NAMES
from tests.inputs.wordpiece import VOCABULARY, encode_with_library, make_texts, make_tokenizer

native = pytest.mark.skipif(not subject.is_compiled(), reason="the native library was not compiled")


def encode_natively(raw: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [ids.tolist() for ids in Tokenizer(raw).encode(texts)]


def find_fallback_texts(raw: tokenizers.Tokenizer, texts: Sequence[str]) -> list[str]:
    """Return the texts that the native encoder leaves to the library."""
    encoder = subject.load_native_wordpiece(raw)
    assert encoder is not None
    return [texts[index] for index in encoder.encode(texts).fallback_indices]


OPTIONS = [
    {"clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": strip, "lowercase": lower}
    for clean, chinese, strip, lower in product((True, False), (True, False), (None, True, False), (True, False))
]


@native
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(str(value) for value in options.values()))
def test_every_normalizer_option_matches_the_library(options: dict[str, Any]) -> None:
    raw, sample = make_tokenizer(**options), make_texts(seed=OPTIONS.index(options), count=150)

    assert encode_natively(raw, sample) == encode_with_library(raw, sample)


@native
def test_a_real_vocabulary_matches_the_library(wordpiece: Tokenizer) -> None:
    sample = [text for seed in range(4) for text in make_texts(100 + seed, 200)]

    assert [ids.tolist() for ids in wordpiece.encode(sample)] == encode_with_library(wordpiece.raw, sample)


@native
@pytest.mark.parametrize(
    ("vocabulary", "model"),
    [
        ({"<unknown>": 7, "a": 9, "b": 2, "##a": 0}, {"unk_token": "<unknown>"}),
        ({"[UNK]": 0, "a": 1, "xa": 2, "xx": 3, "xxa": 4, "b": 5, "x": 6}, {"continuing_subword_prefix": "x"}),
        ({"[UNK]": 0, "a": 1, "ab": 2, "b": 3, "bc": 4, "c": 5}, {"continuing_subword_prefix": ""}),
        (VOCABULARY, {"max_input_chars_per_word": 3}),
        (VOCABULARY, {"max_input_chars_per_word": 0}),
        (VOCABULARY, {"max_input_chars_per_word": 10**9}),
        ({"[UNK]": 0}, {}),
        ({"[UNK]": 0, "": 1, "##": 2, "a": 3}, {}),
    ],
    ids=["unknown", "prefix", "no prefix", "short words", "no words", "any words", "nothing else", "empty pieces"],
)
def test_every_kind_of_vocabulary_matches_the_library(vocabulary: dict[str, int], model: dict[str, Any]) -> None:
    raw = make_tokenizer(vocabulary, model=model)
    words = ["", "a", "aa", "ab", "ba", "abc", "abca", "xa", "axa", "axxa", "xxa", "bcx", "a" * 500, "é", "éé", "日中"]
    sample = [*words, " ".join(words), *make_texts(seed=8, count=100)]

    assert encode_natively(raw, sample) == encode_with_library(raw, sample)


@native
def test_long_words_with_a_common_prefix_are_distinguished() -> None:
    words = [f"{start}{number:04}" for start in ("internationalisation", "lastingly") for number in range(1500)]
    raw = make_tokenizer({"[UNK]": 0} | {word: row for row, word in enumerate(words[::30], start=1)})

    assert encode_natively(raw, words) == encode_with_library(raw, words)


ADDED = [
    AddedToken("[Q] ", normalized=True),
    AddedToken("New York", normalized=True, single_word=True),
    AddedToken("<x>", normalized=False, lstrip=True, rstrip=True),
    AddedToken("Ünï", normalized=True),
    AddedToken("日中", normalized=False),
]
TEXTS_WITH_ADDED_TOKENS = [
    "a [SEP] b",
    "[MASK]",
    "the[CLS]the",
    "[q] a",
    "[Q]\ta",
    "in new york.",
    "in NEW YORKERS",
    "a <x> b",
]
TEXTS_WITH_ADDED_TOKENS += ["üni", "unix", "UN\u0308I", "a日中a", "new\nyork"]
TEXTS_WITHOUT_ADDED_TOKENS = [
    "[SEP",
    "SEP]",
    "[sep]",
    "[ SEP ]",
    "[]",
    "new  york",
    "newyork",
    "< x >",
    "<X>",
    "u ni",
    "中日",
    "[q]",
    "",
]


@native
def test_a_text_with_an_added_token_falls_back_to_the_library(wordpiece: Tokenizer) -> None:
    raw, sample = make_tokenizer(added=ADDED, lowercase=True), [*TEXTS_WITH_ADDED_TOKENS, *TEXTS_WITHOUT_ADDED_TOKENS]

    assert find_fallback_texts(raw, sample) == TEXTS_WITH_ADDED_TOKENS
    assert encode_natively(raw, sample) == encode_with_library(raw, sample)
    assert find_fallback_texts(wordpiece.raw, sample) == TEXTS_WITH_ADDED_TOKENS[:3]


@native
def test_only_combining_marks_of_uncertain_order_fall_back_to_the_library() -> None:
    certain = [
        "cafe\u0301",
        "x\u0323\u0307",
        "हिन्दी",
        "한국어",
        "日本語です",
        "👩\u200d👧",
        "naïve Ünïcödé",
        "\x00\ufffd",
        "\u3000",
    ]
    uncertain = ["\u1b44", "a\U0001d165b", "\U0001d15e"]  # not removed, and reordered by normalization

    assert find_fallback_texts(make_tokenizer(lowercase=True), certain + uncertain) == uncertain
    assert find_fallback_texts(make_tokenizer(lowercase=False), certain + uncertain) == []  # no decomposition


@native
def test_native_and_fallback_texts_keep_their_order(wordpiece: Tokenizer) -> None:
    for sample in (
        ["[SEP]", "a b", "", "[MASK] c", "[MASK]", "d", "[SEP] e f"],
        ["[SEP]"],
        ["[SEP]", ""],
        ["", "a"],
        [],
    ):
        ids, offsets = wordpiece.encode_flat(sample)

        expected = encode_with_library(wordpiece.raw, sample)
        assert ids.tolist() == [token for text in expected for token in text]
        assert offsets.tolist() == [sum(map(len, expected[:row])) for row in range(len(sample) + 1)]
        assert (ids.dtype, offsets.dtype) == ("int32", "int64")


@native
def test_texts_of_any_length_are_encoded(wordpiece: Tokenizer) -> None:
    sample = ["a b" * 20_000, "é" * 50_000, "", "日本" * 10_000, "x" * 150_000]

    assert [ids.tolist() for ids in wordpiece.encode(sample)] == encode_with_library(wordpiece.raw, sample)


@native
def test_concurrent_threads_can_encode_new_characters() -> None:
    raw, sample = make_tokenizer(lowercase=True), make_texts(seed=9, count=60)
    tokenizer, results = Tokenizer(raw), list[list[list[int]]]()

    def encode() -> None:
        results.extend([ids.tolist() for ids in tokenizer.encode(sample)] for _ in range(5))

    threads = [threading.Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [encode_with_library(raw, sample)] * 20


@native
def test_token_ids_outlive_their_tokenizer() -> None:
    raw = make_tokenizer(lowercase=True)
    (ids,) = Tokenizer(raw).encode(["the cafe"])

    assert ids.tolist() == [VOCABULARY["the"], VOCABULARY["cafe"]]


def test_a_lone_surrogate_is_refused_anywhere_in_the_text(wordpiece: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="a lone surrogate '.ud800' at character 2"):
        wordpiece.encode(["a", "a \ud800 b"])


def test_text_is_lowercased_before_encoding(wordpiece: Tokenizer) -> None:
    raw = make_tokenizer(lowercase=False)
    sample = ["The CAFE", "ΑΣ ΑΣΑ İ", "[SEP] The"]

    lowered = encode_with_library(raw, [text.lower() for text in sample])
    assert [ids.tolist() for ids in Tokenizer(raw).encode(sample, lower_case=True)] == lowered
    assert [ids.tolist() for ids in Tokenizer(raw, lower_case=True).encode(sample)] == lowered
    assert encode_natively(raw, sample) == encode_with_library(raw, sample) != lowered


# tokenizers without native encoder


def test_without_the_compiled_code_everything_falls_back_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, sample = make_tokenizer(lowercase=True), [*make_texts(seed=7, count=50), "", "[SEP]"]
    monkeypatch.setattr(subject, "load_library", lambda: None)

    assert subject.load_native_wordpiece(raw) is None
    assert encode_natively(raw, sample) == encode_with_library(raw, sample)
    assert Tokenizer(raw).encode_flat([]).cu_seqlens.tolist() == [0]


def test_other_tokenizer_types_are_not_native(raw: tokenizers.Tokenizer, request: pytest.FixtureRequest) -> None:
    assert (subject.load_native_wordpiece(raw) is not None) == (
        request.node.callspec.params["raw"] == NAMES[0] and subject.is_compiled()
    )


def test_tokenizers_with_truncation_or_padding_are_not_native() -> None:
    plain, truncating, padding, split = (make_tokenizer() for _ in range(4))
    truncating.enable_truncation(2)
    padding.enable_padding()
    split.pre_tokenizer = Whitespace()
    without_unk = make_tokenizer({"a": 0}, model={"unk_token": "?"})
    empty_added = make_tokenizer(added=[AddedToken("\x01", normalized=True)])  # empty after normalization

    assert (subject.load_native_wordpiece(plain) is None) == (not subject.is_compiled())
    assert [subject.load_native_wordpiece(raw) for raw in (truncating, padding, split, without_unk, empty_added)] == [
        None
    ] * 5

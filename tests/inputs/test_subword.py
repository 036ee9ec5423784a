"""The native BPE and Unigram encoders give the same ids as the `tokenizers` library."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import NFC, NFKC, Precompiled, Prepend, Replace, Strip
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, Split, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence

from cenote.errors import BadRequest
from cenote.inputs import native_tokenizer as subject
from cenote.inputs import wordpiece
from cenote.inputs.native_encoding import NativeEncoding
from cenote.inputs.subword import library
from cenote.inputs.subword.pretokenizers import PATTERNS
from cenote.inputs.tokenizer import Tokenizer
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_files import load_tokenizer_files
from tests.inputs.conftest import SHARED, read_tokenizer, wrap_tokenizer
from tests.inputs.subword_texts import make_texts
from tests.inputs.subword_tokenizers import SPACE, make_byte_bpe, make_char_bpe, make_unigram

native = pytest.mark.skipif(library.load_library() is None, reason="the native library was not compiled")
PUBLISHED = ("gpt2", "roberta-base", "olmo", "qwen3", "xlm-roberta", "deberta-v3")


def read_published(name: str) -> tokenizers.Tokenizer:
    path = SHARED / name / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"no tokenizer {name} in the folder `shared` next to the project")
    return read_tokenizer(path)


def encode_with_library(raw: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in raw.encode_batch(texts, add_special_tokens=False)]


def assert_same_ids(
    raw: tokenizers.Tokenizer, texts: Sequence[str], tokenizer: Tokenizer | None = None
) -> NativeEncoding:
    """Compare with the library; return the native encoding."""
    tokenizer = tokenizer or Tokenizer(raw)
    assert tokenizer.native.encoder is not None, tokenizer.native.reason
    expected = encode_with_library(raw, texts)
    for text, ids, ids_of_library in zip(texts, tokenizer.encode(texts), expected, strict=True):
        assert ids.tolist() == ids_of_library, repr(text)
    return tokenizer.native.encoder.encode(texts)


def added_tokens(raw: tokenizers.Tokenizer) -> list[str]:
    return [token.content for token in raw.get_added_tokens_decoder().values()]


# a small vocabulary of each algorithm


SMALL_TEXTS = [
    *(
        "",
        " ",
        "  ",
        "the the  the",
        " the",
        "\n",
        "a" * 1000,
        "xyzxyz" * 50,
        "foo's 'S",
        "12345 1234567",
        "é日本語",
        "\x00",
    ),
    *(
        "<s>",
        "<s><s><s>a",
        "a\n\n\nb",
        "a <mask>b",
        "Héllo",
        "He\u0301llo",
        "a word",
        "swords",
        "aaa reached not",
        "ssss",
    ),
    *("\u2581the\u2581", " \u2581 a", "a b", "the\u3000the\u2028", "<unk>", "q<unk>q", "ÿÿ", "\U0010ffff", "abab" * 20),
]
COLLAPSE = Replace(Regex(" {2,}"), " ")


@pytest.mark.parametrize("pattern", [None, *PATTERNS], ids=["byte level", "gpt2", "one digit", "three digits"])
@pytest.mark.parametrize("normalizer", [None, NFC()], ids=["as is", "nfc"])
@pytest.mark.parametrize("ignore_merges", [False, True])
@native
def test_byte_level_bpe_matches_the_library(pattern: str | None, normalizer: Any, ignore_merges: bool) -> None:
    split = PreTokenizerSequence(
        [Split(Regex(pattern or ""), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    raw = make_byte_bpe(split if pattern else ByteLevel(add_prefix_space=True), normalizer, ignore_merges=ignore_merges)

    assert_same_ids(raw, [*SMALL_TEXTS, *make_texts(1, 150, added_tokens(raw))])


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer"),
    [
        (Replace(" ", SPACE), Split(" ", "merged_with_previous")),
        (NormalizerSequence([Prepend(SPACE), Replace(" ", SPACE)]), None),
        (None, Metaspace(prepend_scheme="first", split=False)),
        (None, Metaspace(prepend_scheme="never", split=False)),
        (NormalizerSequence([Strip(), COLLAPSE, Prepend(SPACE), Replace(" ", SPACE)]), None),
    ],
    ids=["gemma", "llama", "llama first", "llama never", "internlm"],
)
@pytest.mark.parametrize("crosses_words", [False, True])
@native
def test_bpe_with_byte_fallback_matches_the_library(normalizer: Any, pre_tokenizer: Any, crosses_words: bool) -> None:
    raw = make_char_bpe(normalizer=normalizer, pre_tokenizer=pre_tokenizer, crosses_words=crosses_words)

    assert_same_ids(raw, [*SMALL_TEXTS, *make_texts(2, 150, added_tokens(raw))])


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer"),
    [
        (None, Metaspace()),
        (None, Metaspace(prepend_scheme="first")),
        (None, PreTokenizerSequence([WhitespaceSplit(), Metaspace()])),
        (NormalizerSequence([Strip(), COLLAPSE]), Metaspace()),
        (NormalizerSequence([Strip(left=False, right=True), Replace(Regex(" {2,}"), SPACE)]), Metaspace()),
    ],
    ids=["always", "first", "white space", "stripped", "stripped right"],
)
@pytest.mark.parametrize("byte_fallback", [False, True])
@native
def test_unigram_matches_the_library(normalizer: Any, pre_tokenizer: Any, byte_fallback: bool) -> None:
    raw = make_unigram(normalizer=normalizer, pre_tokenizer=pre_tokenizer, byte_fallback=byte_fallback)

    assert_same_ids(raw, [*SMALL_TEXTS, *make_texts(3, 150, added_tokens(raw))])


# published vocabularies


@pytest.mark.parametrize("name", PUBLISHED)
@native
def test_a_published_tokenizer_matches_the_library(name: str) -> None:
    raw = read_published(name)

    encoding = assert_same_ids(raw, make_texts(4, 400, added_tokens(raw)), wrap_tokenizer(raw))

    assert len(encoding.fallback_indices) < 100  # with added tokens that take spaces, or beside text to be normalized


@native
def test_a_sentencepiece_file_matches_the_library(tmp_path: Path) -> None:
    path = SHARED / "mistral-v1" / "tokenizer.model"
    if not path.is_file():
        pytest.skip("no tokenizer mistral-v1 in the folder `shared` next to the project")
    shutil.copyfile(path, tmp_path / "tokenizer.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    raw = load_tokenizer_files(Checkpoint("mistral", tmp_path)).tokenizer

    assert not assert_same_ids(raw, make_texts(5, 400, added_tokens(raw))).fallback_indices


@pytest.mark.parametrize(
    "steps", [[Strip()], [Strip(left=False, right=True), Replace(Regex(" {2,}"), SPACE)]], ids=["strip", "newer"]
)
@native
def test_normalization_around_the_character_map_matches_the_library(steps: list[Any]) -> None:
    char_map = read_published("xlm-roberta").normalizer[0]  # type: ignore[index]
    raw = make_unigram(normalizer=NormalizerSequence([char_map, *steps]))

    assert isinstance(char_map, Precompiled)
    assert_same_ids(raw, make_texts(6, 300, added_tokens(raw)))


@pytest.mark.parametrize("name", PUBLISHED)
@native
def test_real_text_is_encoded_natively(name: str) -> None:
    corpus = SHARED.parent / "data" / "scifact" / "corpus.jsonl.gz"
    if not corpus.is_file():
        pytest.skip("no data in the folder `shared` next to the project")
    raw = read_published(name)
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        texts = [" ".join(json.loads(line)["text"].split("\n")) for line, _ in zip(lines, range(60), strict=False)]

    assert not assert_same_ids(raw, texts, wrap_tokenizer(raw)).fallback_indices


@pytest.mark.parametrize("name", ["qwen3", "xlm-roberta"])
@native
def test_text_that_needs_normalization_is_not_left_to_the_library(name: str) -> None:
    raw = read_published(name)
    texts = ["cafe\u0301 au lait", "\u1112\u1161\u11ab", "ﷺ", "e\u0301", "a\r\nb", "plain"]

    assert not assert_same_ids(raw, texts, wrap_tokenizer(raw)).fallback_indices


# what is left to the library


@native
def test_only_texts_with_added_tokens_that_take_spaces_fall_back() -> None:
    raw = make_byte_bpe(ByteLevel(add_prefix_space=False))
    texts = ["a <s> b", "a <mask> b", "a\n\nb", "one word", "Héllo", "<s><s>"]

    assert assert_same_ids(raw, texts).fallback_indices == [1, 3]


@native
def test_a_text_with_bytes_outside_the_vocabulary_falls_back() -> None:
    raw = tokenizers.Tokenizer(BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    raw.pre_tokenizer = ByteLevel(add_prefix_space=False)

    assert assert_same_ids(raw, ["abab", "abc", "b"]).fallback_indices == [1]


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(BadRequest, match="a lone surrogate '.ud800' at character 2"):
        Tokenizer(make_unigram()).encode(["a", "a \ud800 b"])


def make_suffix_bpe() -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(BPE({"a</w>": 0, "a": 1}, [], end_of_word_suffix="</w>"))
    raw.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return raw


def make_unknown_tokenizers() -> dict[str, tokenizers.Tokenizer]:
    plain = ByteLevel(add_prefix_space=False)
    truncating, padding, encoding_specials = (make_byte_bpe(plain) for _ in range(3))
    truncating.enable_truncation(2)
    padding.enable_padding()
    encoding_specials.encode_special_tokens = True
    digits = make_byte_bpe(PreTokenizerSequence([Digits(), plain]))
    other_pattern = make_byte_bpe(
        PreTokenizerSequence([Split(Regex("a+"), "isolated"), ByteLevel(False, use_regex=False)])
    )
    return {
        "truncates or pads": truncating,
        "truncates": padding,
        "special tokens as text": encoding_specials,
        "Digits": digits,
        "Split with": other_pattern,
        "normalizer NFKC": make_byte_bpe(plain, NFKC()),
        "dropout": make_byte_bpe(plain, dropout=0.5),
        "end_of_word_suffix": make_suffix_bpe(),
        "WordLevel": tokenizers.Tokenizer(WordLevel({"a": 0}, unk_token="a")),
        "not split at spaces": make_unigram(pre_tokenizer=Metaspace(split=False)),
        "not replaced": make_char_bpe(normalizer=None, pre_tokenizer=None),
    }


@native
@pytest.mark.parametrize("reason", make_unknown_tokenizers())
def test_other_tokenizers_use_the_library_and_the_log_says_why(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    raw = make_unknown_tokenizers()[reason]
    subject.log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="cenote"):
        choices = [subject.choose_encoder(raw) for _ in range(2)]

    assert [(choice.encoder, choice.is_known) for choice in choices] == [(None, False)] * 2
    (message,) = caplog.messages
    assert reason in message


@native
def test_a_native_encoder_that_differs_from_the_library_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = read_published("gpt2")
    monkeypatch.setitem(PATTERNS, next(iter(PATTERNS)), 2)  # the scanner of another regular expression

    choice = subject.choose_encoder(raw)

    assert (choice.encoder, choice.is_known) == (None, False)
    assert "differently" in choice.reason
    assert [ids.tolist() for ids in Tokenizer(raw).encode(["1234 ab"])] == encode_with_library(raw, ["1234 ab"])


def test_without_the_compiled_code_texts_are_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "load_library", lambda: None)
    raw = make_unigram()

    assert subject.choose_encoder(raw) == (None, "no compiler was found at install", True)
    assert [ids.tolist() for ids in Tokenizer(raw).encode(["the"])] == encode_with_library(raw, ["the"])


def test_a_native_library_that_cannot_be_loaded_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    for name, load_library in (("_subword", library.load_library), ("_wordpiece", wordpiece.load_library)):
        (tmp_path / f"{name}.abi3.so").write_bytes(b"for another machine")

        assert load_library.__wrapped__() is None


# limits


@native
def test_words_and_texts_of_any_length_are_encoded() -> None:
    texts = ["ab" * 30_000, "the " * 20_000, "é" * 40_000, " " * 10_000, "", "1" * 50_000, "日本" * 10_000]

    for raw in (
        make_byte_bpe(ByteLevel(add_prefix_space=True)),
        make_char_bpe(normalizer=Replace(" ", SPACE), pre_tokenizer=None, crosses_words=True),
        make_unigram(byte_fallback=True),
    ):
        assert_same_ids(raw, texts)


@native
def test_concurrent_threads_can_encode_new_characters() -> None:
    raw = make_unigram(byte_fallback=True)
    texts, tokenizer, results = make_texts(7, 60), Tokenizer(raw), list[list[list[int]]]()

    def encode() -> None:
        results.extend([ids.tolist() for ids in tokenizer.encode(texts)] for _ in range(5))

    threads = [threading.Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [encode_with_library(raw, texts)] * 20

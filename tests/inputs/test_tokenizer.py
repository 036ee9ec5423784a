"""Tokenizer with real vocabularies, compared with the `tokenizers` library."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tokenizers

from cenote.errors import BadRequest
from cenote.inputs import tokenizer as subject
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.input_types import TextPair
from cenote.protocol.params import TokenizationParams
from tests.inputs.conftest import wrap_tokenizer

TEXT_OF_WORDS = (
    "the of unbelievable antidisestablishmentarianism Berlin PARIS 12 3.14 1,000 it's don't e.g. -- ... (so) [MASK] "
    "<mask> <s> http://a.b/c?d=e naïve cafe\u0301 Ünïcödé straße größer İstanbul 中文 日本語です 한국어 русский "
    "العربية हिन्दी 🙂 👩\u200d👩\u200d👧 🇩🇪 x\u0323\u0307 \u00a0nbsp a\u200bb \ufeffbom \x00nul \x07 tab\tin "
    "line\nbreak crlf\r\nline"
)
WORDS = TEXT_OF_WORDS.split(" ")


def random_text(seed: int, num_words: int) -> str:
    """Return words of many scripts, mostly with single spaces between them."""
    rng = random.Random(seed)
    parts = []
    for _ in range(num_words):
        parts.append(rng.choice(WORDS))
        parts.append(rng.choices([" ", "  ", "\n", ", ", "\t "], [12, 1, 1, 1, 1])[0])
    return "".join(parts)


@contextmanager
def truncating(raw: tokenizers.Tokenizer, max_length: int, side: str) -> Iterator[None]:
    raw.enable_truncation(max_length, strategy="longest_first", direction=side)
    try:
        yield
    finally:
        raw.no_truncation()


def render(raw: tokenizers.Tokenizer, item: str | TextPair, side: Any = "right", **tokenization: Any) -> TokenizedInput:
    renderer = Renderer(wrap_tokenizer(raw, side), RendererSettings(vocab_size=10**6, hidden_size=8))
    (tokenized,) = renderer.render([item], TokenizationParams(**tokenization), Limits(10**6))
    assert isinstance(tokenized, TokenizedInput)
    return tokenized


def token_type_ids(tokenized: TokenizedInput) -> list[int]:
    return [int(index >= tokenized.type1_start) for index in range(len(tokenized.token_ids))]


@pytest.mark.parametrize("seed", range(4))
def test_a_text_is_tokenized_as_by_the_library(raw: tokenizers.Tokenizer, seed: int) -> None:
    text = random_text(seed, 40)

    assert render(raw, text).token_ids.tolist() == raw.encode(text).ids
    without_special_tokens = render(raw, text, add_special_tokens=False).token_ids.tolist()
    assert without_special_tokens == raw.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_is_truncated_as_by_the_library(raw: tokenizers.Tokenizer, side: str) -> None:
    text = random_text(5, 12)
    num_special = raw.num_special_tokens_to_add(False)

    for length in range(num_special + 1, len(raw.encode(text)) + 3):
        with truncating(raw, length, side):
            expected = raw.encode(text).ids
        assert render(raw, text, side, truncate_prompt_tokens=length).token_ids.tolist() == expected


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("num_query", "num_document"), [(3, 14), (14, 3), (6, 6), (0, 5), (5, 0), (1, 1)])
def test_a_pair_is_truncated_longest_first_as_by_the_library(
    raw: tokenizers.Tokenizer, side: str, num_query: int, num_document: int
) -> None:
    query, document = random_text(1, num_query), random_text(2, num_document)
    num_special = raw.num_special_tokens_to_add(True)
    whole = render(raw, TextPair(query, document))

    assert whole.token_ids.tolist() == raw.encode(query, document).ids
    assert token_type_ids(whole) == raw.encode(query, document).type_ids
    for length in range(num_special + 2, len(whole.token_ids) + 2):
        with truncating(raw, length, side):
            expected = raw.encode(query, document)
        ours = render(raw, TextPair(query, document), side, truncate_prompt_tokens=length)
        assert ours.token_ids.tolist() == expected.ids
        assert token_type_ids(ours) == expected.type_ids
        assert ours.num_input_tokens == len(whole.token_ids)


def test_a_pair_without_special_tokens_matches_the_library(raw: tokenizers.Tokenizer) -> None:
    ours = render(raw, TextPair("one two", "three"), add_special_tokens=False)
    expected = raw.encode("one two", "three", add_special_tokens=False)

    assert ours.token_ids.tolist() == expected.ids
    assert token_type_ids(ours) == expected.type_ids


@pytest.mark.parametrize("side", ["right", "left"])
def test_an_explicit_truncation_side_slices_a_pair_and_its_token_types(raw: tokenizers.Tokenizer, side: Any) -> None:
    whole = raw.encode("one two three", "four five")

    for keep in range(1, len(whole) + 2):
        ours = render(raw, TextPair("one two three", "four five"), truncate_prompt_tokens=keep, truncation_side=side)
        part = slice(None, keep) if side == "right" else slice(max(0, len(whole) - keep), None)
        assert ours.token_ids.tolist() == whole.ids[part]
        assert token_type_ids(ours) == whole.type_ids[part]


@pytest.mark.parametrize("seed", range(10))
def test_a_long_text_tokenized_in_chunks_equals_the_whole(
    raw: tokenizers.Tokenizer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = random_text(seed, 300)
    whole = raw.encode(text, add_special_tokens=False).ids
    monkeypatch.setattr(subject, "CHUNK_CHARS", 150 + 7 * seed)
    monkeypatch.setattr(subject, "SPLIT_SEARCH_CHARS", 140)

    (ours,) = wrap_tokenizer(raw).encode([text])

    assert ours.tolist() == whole


def test_a_long_text_keeps_its_position_among_short_ones(wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a b", "c d e f g h i j k l m n", "", "e"]
    expected = [wordpiece.raw.encode(text, add_special_tokens=False).ids for text in texts]
    monkeypatch.setattr(subject, "CHUNK_CHARS", 8)
    monkeypatch.setattr(subject, "SPLIT_SEARCH_CHARS", 6)

    assert [ids.tolist() for ids in wordpiece.encode(texts)] == expected


def test_a_text_without_spaces_is_chunked_at_the_limit(
    raw: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(random.Random(0).choices("天地玄黄宇宙洪荒日月盈昃辰宿列张", k=400))
    monkeypatch.setattr(subject, "CHUNK_CHARS", 100)
    monkeypatch.setattr(subject, "SPLIT_SEARCH_CHARS", 50)

    (ours,) = wrap_tokenizer(raw).encode([text])

    whole = raw.encode(text, add_special_tokens=False).ids
    assert raw.decode(ours.tolist()).replace(" ", "") == raw.decode(whole).replace(" ", "")


@pytest.mark.parametrize("limit", [1, 2, 5, 30, 1000])
def test_a_truncated_text_ends_at_its_last_token(raw: tokenizers.Tokenizer, limit: int) -> None:
    tokenizer = wrap_tokenizer(raw)
    texts = ["one two three", "unbelievable things happened in Berlin last year", "", "a", "naïve  café, 12 €"]

    for text, (part, _) in zip(texts, tokenizer.truncate_texts(texts, limit), strict=True):
        whole = raw.encode(text, add_special_tokens=False)
        assert text.startswith(part)
        assert part == (text if len(whole) <= limit else text[: whole.offsets[limit - 1][1]])


def test_a_huge_text_is_truncated_without_tokenizing_all_of_it(wordpiece: Tokenizer) -> None:
    (first, num_truncated), second = wordpiece.truncate_texts(["a b " * 1_000_000, "c"], 3)

    assert (first, second) == ("a b a", ("c", 0))
    assert num_truncated > 100  # a lower bound


def test_invalid_unicode_is_left_for_the_renderer_to_refuse(wordpiece: Tokenizer) -> None:
    assert wordpiece.truncate_texts(["a b c", "\ud800 b c"], 1) == [("a", 2), ("\ud800 b c", 0)]


# detokenization


@pytest.mark.parametrize("seed", range(3))
def test_detokenization_matches_the_library(raw: tokenizers.Tokenizer, seed: int) -> None:
    ids = raw.encode(random_text(seed, 30)).ids

    assert wrap_tokenizer(raw).detokenize(ids) == raw.decode(ids, skip_special_tokens=False)
    assert wrap_tokenizer(raw).convert_ids_to_tokens(ids) == [raw.id_to_token(token) for token in ids]


def test_detokenization_keeps_special_tokens(wordpiece: Tokenizer) -> None:
    assert wordpiece.detokenize([101, 1037, 102, 0]) == "[CLS] a [SEP] [PAD]"
    assert wordpiece.detokenize([]) == ""
    assert wordpiece.convert_ids_to_tokens([101, 1037, 2015]) == ["[CLS]", "a", "##s"]
    assert wordpiece.convert_ids_to_tokens([]) == []


def test_spaces_are_cleaned_up_if_the_tokenizer_says_so(wordpiece: Tokenizer) -> None:
    (ids,) = wordpiece.encode(["i 'm here , isn't it ? no ."])

    assert wordpiece.detokenize(ids.tolist()) == "i ' m here, isn ' t it? no."
    assert Tokenizer(wordpiece.raw, clean_up=True).detokenize(ids.tolist()) == "i'm here, isn't it? no."


def test_an_id_beyond_the_vocabulary_is_an_empty_token(wordpiece: Tokenizer) -> None:
    assert wordpiece.convert_ids_to_tokens([101, 30522]) == ["[CLS]", ""]


def test_an_id_in_a_gap_of_the_vocabulary_is_refused() -> None:
    gapped = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 5}, unk_token="a"))

    assert Tokenizer(gapped).convert_ids_to_tokens([0, 5]) == ["a", "b"]
    with pytest.raises(BadRequest, match="Token id 3 is out of vocabulary: it is unused among the ids 0 to 5"):
        Tokenizer(gapped).detokenize([0, 3])


def test_vocabulary_properties(wordpiece: Tokenizer) -> None:
    assert wordpiece.max_token_id == 30521
    assert wordpiece.max_chars_per_token == 18
    assert wordpiece.single_template.num_tokens == 2
    assert wordpiece.pair_template.num_tokens == 3
    assert wordpiece.pair_template.second_type_id == 1

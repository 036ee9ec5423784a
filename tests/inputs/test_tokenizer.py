"""Real tokenizers, next to what the `tokenizers` library itself does with the same texts."""

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
from cenote.inputs.tokenized_inputs import Rendered
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.input_types import Pair
from cenote.protocol.requests import Tokenization
from tests.inputs.conftest import wrapped

TEXT_OF_WORDS = (
    "the of unbelievable antidisestablishmentarianism Berlin PARIS 12 3.14 1,000 it's don't e.g. -- ... (so) [MASK] "
    "<mask> <s> http://a.b/c?d=e naïve cafe\u0301 Ünïcödé straße größer İstanbul 中文 日本語です 한국어 русский "
    "العربية हिन्दी 🙂 👩\u200d👩\u200d👧 🇩🇪 x\u0323\u0307 \u00a0nbsp a\u200bb \ufeffbom \x00nul \x07 tab\tin "
    "line\nbreak crlf\r\nline"
)
WORDS = TEXT_OF_WORDS.split(" ")


def random_text(seed: int, num_words: int) -> str:
    """Words of many alphabets, mostly with single spaces between them."""
    dice = random.Random(seed)
    parts = []
    for _ in range(num_words):
        parts.append(dice.choice(WORDS))
        parts.append(dice.choices([" ", "  ", "\n", ", ", "\t "], [12, 1, 1, 1, 1])[0])
    return "".join(parts)


@contextmanager
def cutting(raw: tokenizers.Tokenizer, max_length: int, side: str) -> Iterator[None]:
    raw.enable_truncation(max_length, strategy="longest_first", direction=side)
    try:
        yield
    finally:
        raw.no_truncation()


def rendered(raw: tokenizers.Tokenizer, item: str | Pair, side: Any = "right", **how: Any) -> Rendered:
    renderer = Renderer(wrapped(raw, side), vocab_size=10**6, hidden_size=8)
    (answer,) = renderer.render([item], Tokenization(**how), Limits(10**6))
    assert isinstance(answer, Rendered)
    return answer


def types(answer: Rendered) -> list[int]:
    return [int(place >= answer.second_start) for place in range(len(answer.token_ids))]


@pytest.mark.parametrize("seed", range(4))
def test_a_text_reads_as_in_the_library(raw: tokenizers.Tokenizer, seed: int) -> None:
    text = random_text(seed, 40)

    assert rendered(raw, text).token_ids.tolist() == raw.encode(text).ids
    bare = rendered(raw, text, add_special_tokens=False).token_ids.tolist()
    assert bare == raw.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_is_cut_as_in_the_library(raw: tokenizers.Tokenizer, side: str) -> None:
    text = random_text(5, 12)
    specials = raw.num_special_tokens_to_add(False)

    for length in range(specials + 1, len(raw.encode(text)) + 3):
        with cutting(raw, length, side):
            expected = raw.encode(text).ids
        assert rendered(raw, text, side, truncate_prompt_tokens=length).token_ids.tolist() == expected


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("num_query", "num_document"), [(3, 14), (14, 3), (6, 6), (0, 5), (5, 0), (1, 1)])
def test_a_pair_is_joined_and_cut_longest_first_as_in_the_library(
    raw: tokenizers.Tokenizer, side: str, num_query: int, num_document: int
) -> None:
    query, document = random_text(1, num_query), random_text(2, num_document)
    specials = raw.num_special_tokens_to_add(True)
    whole = rendered(raw, Pair(query, document))

    assert whole.token_ids.tolist() == raw.encode(query, document).ids
    assert types(whole) == raw.encode(query, document).type_ids
    for length in range(specials + 2, len(whole.token_ids) + 2):
        with cutting(raw, length, side):
            expected = raw.encode(query, document)
        ours = rendered(raw, Pair(query, document), side, truncate_prompt_tokens=length)
        assert ours.token_ids.tolist() == expected.ids
        assert types(ours) == expected.type_ids
        assert ours.num_input_tokens == len(whole.token_ids)


def test_a_pair_without_special_tokens_reads_as_in_the_library(raw: tokenizers.Tokenizer) -> None:
    ours = rendered(raw, Pair("one two", "three"), add_special_tokens=False)
    expected = raw.encode("one two", "three", add_special_tokens=False)

    assert ours.token_ids.tolist() == expected.ids
    assert types(ours) == expected.type_ids


@pytest.mark.parametrize("side", ["right", "left"])
def test_an_explicit_side_slices_a_pair_and_its_types(raw: tokenizers.Tokenizer, side: Any) -> None:
    whole = raw.encode("one two three", "four five")

    for keep in range(1, len(whole) + 2):
        ours = rendered(raw, Pair("one two three", "four five"), truncate_prompt_tokens=keep, truncation_side=side)
        part = slice(None, keep) if side == "right" else slice(max(0, len(whole) - keep), None)
        assert ours.token_ids.tolist() == whole.ids[part]
        assert types(ours) == whole.type_ids[part]


@pytest.mark.parametrize("seed", range(10))
def test_a_long_text_read_in_pieces_reads_as_the_whole(
    raw: tokenizers.Tokenizer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = random_text(seed, 300)
    whole = raw.encode(text, add_special_tokens=False).ids
    monkeypatch.setattr(subject, "PIECE_CHARS", 150 + 7 * seed)
    monkeypatch.setattr(subject, "SEAM_CHARS", 140)

    (ours,) = wrapped(raw).encode([text])

    assert ours.tolist() == whole


def test_a_long_text_keeps_its_place_among_short_ones(wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a b", "c d e f g h i j k l m n", "", "e"]
    expected = [wordpiece.raw.encode(text, add_special_tokens=False).ids for text in texts]
    monkeypatch.setattr(subject, "PIECE_CHARS", 8)
    monkeypatch.setattr(subject, "SEAM_CHARS", 6)

    assert [ids.tolist() for ids in wordpiece.encode(texts)] == expected


def test_a_text_without_any_space_is_cut_somewhere_and_read_to_its_end(
    raw: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(random.Random(0).choices("天地玄黄宇宙洪荒日月盈昃辰宿列张", k=400))
    monkeypatch.setattr(subject, "PIECE_CHARS", 100)
    monkeypatch.setattr(subject, "SEAM_CHARS", 50)

    (ours,) = wrapped(raw).encode([text])

    whole = raw.encode(text, add_special_tokens=False).ids
    assert raw.decode(ours.tolist()).replace(" ", "") == raw.decode(whole).replace(" ", "")


@pytest.mark.parametrize("limit", [1, 2, 5, 30, 1000])
def test_a_text_ends_where_its_last_token_ends(raw: tokenizers.Tokenizer, limit: int) -> None:
    tokenizer = wrapped(raw)
    texts = ["one two three", "unbelievable things happened in Berlin last year", "", "a", "naïve  café, 12 €"]

    for text, (part, _) in zip(texts, tokenizer.cut(texts, limit), strict=True):
        whole = raw.encode(text, add_special_tokens=False)
        assert text.startswith(part)
        assert part == (text if len(whole) <= limit else text[: whole.offsets[limit - 1][1]])


def test_a_huge_text_is_cut_without_reading_it_all(wordpiece: Tokenizer) -> None:
    (first, num_lost), second = wordpiece.cut(["a b " * 1_000_000, "c"], 3)

    assert (first, second) == ("a b a", ("c", 0))
    assert num_lost > 100  # not all of it was counted


def test_a_text_that_is_none_is_left_for_the_renderer_to_refuse(wordpiece: Tokenizer) -> None:
    assert wordpiece.cut(["a b c", "\ud800 b c"], 1) == [("a", 2), ("\ud800 b c", 0)]


# back to text


@pytest.mark.parametrize("seed", range(3))
def test_ids_become_the_text_that_the_library_makes_of_them(raw: tokenizers.Tokenizer, seed: int) -> None:
    ids = raw.encode(random_text(seed, 30)).ids

    assert wrapped(raw).detokenize(ids) == raw.decode(ids, skip_special_tokens=False)
    assert wrapped(raw).strings(ids) == [raw.id_to_token(token) for token in ids]


def test_special_tokens_stay_in_the_text(wordpiece: Tokenizer) -> None:
    assert wordpiece.detokenize([101, 1037, 102, 0]) == "[CLS] a [SEP] [PAD]"
    assert wordpiece.detokenize([]) == ""
    assert wordpiece.strings([101, 1037, 2015]) == ["[CLS]", "a", "##s"]
    assert wordpiece.strings([]) == []


def test_spaces_are_cleaned_up_where_the_tokenizer_wants_it(wordpiece: Tokenizer) -> None:
    (ids,) = wordpiece.encode(["i 'm here , isn't it ? no ."])

    assert wordpiece.detokenize(ids.tolist()) == "i ' m here, isn ' t it? no."
    assert Tokenizer(wordpiece.raw, clean_up=True).detokenize(ids.tolist()) == "i'm here, isn't it? no."


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([7, -1], "Token id -1 is out of vocabulary: ids go from 0 to 30521"),
        ([30522], "Token id 30522 is out of vocabulary: ids go from 0 to 30521"),
        ([2**63 - 1], "Token id 9223372036854775807 is out of vocabulary"),
        ([2**80], f"Token id {2**80} is out of vocabulary"),
        ([1.5], "should be a list of integers"),
        ([True], "should be a list of integers"),
        (["a"], "should be a list of integers"),
        ([[7]], "should be a list of integers"),
    ],
    ids=str,
)
def test_ids_that_nobody_has_are_refused(wordpiece: Tokenizer, ids: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        wordpiece.detokenize(ids)
    assert caught.value.param == "tokens"


def test_a_row_that_only_the_model_has_is_written_as_nothing(wordpiece: Tokenizer) -> None:
    assert wordpiece.strings([101, 30522]) == ["[CLS]", ""]


def test_an_id_in_a_gap_of_the_vocabulary_is_refused() -> None:
    gapped = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 5}, unk_token="a"))

    assert Tokenizer(gapped).strings([0, 5]) == ["a", "b"]
    with pytest.raises(BadRequest, match="Token id 3 is out of vocabulary: among the ids from 0 to 5, it is not used"):
        Tokenizer(gapped).detokenize([0, 3])


def test_vocabulary_facts(wordpiece: Tokenizer) -> None:
    assert wordpiece.max_token_id == 30521
    assert wordpiece.max_chars_per_token == 18
    assert wordpiece.single.num_tokens == 2
    assert wordpiece.pair.num_tokens == 3
    assert wordpiece.pair.second_type == 1

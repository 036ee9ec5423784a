"""Queries and documents of models that read them in different ways: markers, expansion, lengths, what has no row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from cenote.errors import PoolingError
from cenote.inputs.colbert_format import Expansion, Side
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenized_inputs import Rendered
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.input_types import Input
from cenote.protocol.requests import Role, Tokenization

CLS, SEP, MASK, COMMA = 101, 102, 103, 1010
Q, D = 1, 2  # [unused0] and [unused1]
A, B, C = 1037, 1038, 1039
SIDES: Mapping[Role, Side] = {
    "query": Side(length=8, marker=Q, strips=True, expansion=Expansion(MASK, 8, attended=False)),
    "document": Side(length=6, marker=D, strips=True, skipped=(COMMA,)),
}


@pytest.fixture
def renderer(wordpiece: Tokenizer) -> Renderer:
    return Renderer(wordpiece, vocab_size=30522, hidden_size=384, sides=SIDES)


def one(renderer: Renderer, item: Input, role: Role | None = None, *, max_len: int = 16, **how: Any) -> Rendered:
    (rendered,) = renderer.render([item], Tokenization(**how), Limits(max_len), None, role)
    if isinstance(rendered, PoolingError):
        raise rendered
    return rendered


def ids(renderer: Renderer, item: Input, role: Role | None = None, **options: Any) -> list[int]:
    return one(renderer, item, role, **options).token_ids.tolist()


def test_a_query_is_marked_and_expanded_with_tokens_it_does_not_see(renderer: Renderer) -> None:
    query = one(renderer, "a b", "query")

    assert query.token_ids.tolist() == [CLS, Q, A, B, SEP, MASK, MASK, MASK]
    assert query.attended == 5
    assert query.kept is None  # what it is expanded with has vectors too
    assert query.num_input_tokens == 5
    assert query.second_start == 8  # all of one type


def test_an_expansion_may_be_seen(wordpiece: Tokenizer) -> None:
    seen = Side(expansion=Expansion(MASK, 8, attended=True))
    renderer = Renderer(wordpiece, vocab_size=30522, hidden_size=384, sides={"query": seen})

    assert one(renderer, "a", "query").attended is None


def test_a_query_that_fills_its_length_sees_all_of_itself(renderer: Renderer) -> None:
    full, longer = one(renderer, "a b c a b", "query"), one(renderer, "a b c a b c a b c", "query")

    assert full.token_ids.tolist() == longer.token_ids.tolist() == [CLS, Q, A, B, C, A, B, SEP]
    assert full.attended is longer.attended is None
    assert (full.num_input_tokens, longer.num_input_tokens) == (8, 12)


def test_a_document_is_marked_and_cut_and_its_punctuation_has_no_row(renderer: Renderer) -> None:
    document = one(renderer, "a, b, c", "document")

    assert document.token_ids.tolist() == [CLS, D, A, COMMA, B, SEP]
    assert document.kept is not None and document.kept.tolist() == [True, True, True, False, True, True]
    assert document.attended is None
    assert document.num_input_tokens == 8
    assert one(renderer, "a b", "document").kept is None


def test_a_text_without_a_role_is_a_document(renderer: Renderer) -> None:
    assert ids(renderer, "a b") == ids(renderer, "a b", "document") == [CLS, D, A, B, SEP]


def test_a_model_without_sides_reads_all_roles_alike(wordpiece: Tokenizer) -> None:
    plain = Renderer(wordpiece, vocab_size=30522, hidden_size=384)

    assert ids(plain, "a b", "query") == ids(plain, "a b", "document") == [CLS, A, B, SEP]


def test_a_request_that_names_a_length_gets_it(renderer: Renderer) -> None:
    assert len(ids(renderer, "a " * 20, truncate_prompt_tokens=12)) == 12
    assert len(ids(renderer, "a " * 20, truncate_prompt_tokens=-1)) == 6  # what the model was made for
    assert ids(renderer, "a", "query", truncate_prompt_tokens=6) == [CLS, Q, A, SEP, MASK, MASK]
    assert ids(renderer, "a b c", "query", truncate_prompt_tokens=2) == [CLS, Q]


def test_no_side_is_longer_than_the_model_reads(renderer: Renderer) -> None:
    assert ids(renderer, "a", "query", max_len=5) == [CLS, Q, A, SEP, MASK]
    assert len(ids(renderer, "a " * 9, "document", max_len=5)) == 5


def test_a_text_is_cut_at_the_side_that_is_asked_for(renderer: Renderer) -> None:
    assert ids(renderer, "a a a b c", truncation_side="left") == [CLS, D, A, B, C, SEP]


def test_white_space_around_a_text_is_left_out_where_the_model_wants_it_so() -> None:
    assert Side(strips=True).text("  a b \n", None) == "a b"
    assert Side().text("  a b \n", None) == "  a b \n"


def test_a_prompt_comes_from_the_request_or_from_the_side() -> None:
    side = Side(prompt="passage: ")

    assert side.text("a", None) == "passage: a"
    assert side.text("a", "query: ") == "query: a"
    assert side.text("a", "") == "a"


def test_without_special_tokens_there_are_no_markers(renderer: Renderer) -> None:
    assert ids(renderer, "a, b", "query", add_special_tokens=False) == [A, COMMA, B]


def test_token_ids_are_left_alone(renderer: Renderer) -> None:
    rendered = one(renderer, [7, COMMA, 9], "document")

    assert rendered.token_ids.tolist() == [7, COMMA, 9]
    assert rendered.kept is None


def test_a_marker_stands_second_whatever_is_first() -> None:
    marked = [Side(marker=Q).marked(np.array(given, dtype=np.int32)).tolist() for given in ([7, 8, 9], [7], [])]

    assert marked == [[7, Q, 8, 9], [7, Q], [Q]]


def test_a_huge_document_is_not_tokenized_only_to_be_cut(renderer: Renderer) -> None:
    rendered = one(renderer, "a " * 1_000_000)

    assert rendered.token_ids.tolist() == [CLS, D, A, A, A, SEP]
    assert not rendered.input_tokens_exact

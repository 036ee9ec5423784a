"""ColBERT input formats of queries and documents: markers, query expansion, lengths, skiplist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from cenote.errors import PoolingError
from cenote.inputs.colbert_format import QueryExpansion, RoleFormat
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.input_types import Input
from cenote.protocol.params import Role, TokenizationParams

CLS, SEP, MASK, COMMA = 101, 102, 103, 1010
Q, D = 1, 2  # [unused0] and [unused1]
A, B, C = 1037, 1038, 1039
ROLE_FORMATS: Mapping[Role, RoleFormat] = {
    "query": RoleFormat(
        max_length=8, marker_id=Q, strip_whitespace=True, expansion=QueryExpansion(MASK, 8, is_attended=False)
    ),
    "document": RoleFormat(max_length=6, marker_id=D, strip_whitespace=True, skiplist_ids=(COMMA,)),
}


@pytest.fixture
def renderer(wordpiece: Tokenizer) -> Renderer:
    return Renderer(wordpiece, RendererSettings(vocab_size=30522, hidden_size=384, role_formats=ROLE_FORMATS))


def render_one(
    renderer: Renderer, item: Input, role: Role | None = None, *, max_len: int = 16, **tokenization: Any
) -> TokenizedInput:
    (rendered,) = renderer.render([item], TokenizationParams(**tokenization), Limits(max_len), None, role)
    if isinstance(rendered, PoolingError):
        raise rendered
    return rendered


def render_ids(renderer: Renderer, item: Input, role: Role | None = None, **options: Any) -> list[int]:
    return render_one(renderer, item, role, **options).token_ids.tolist()


def test_a_query_gets_its_marker_and_expansion_tokens_it_does_not_attend_to(renderer: Renderer) -> None:
    query = render_one(renderer, "a b", "query")

    assert query.token_ids.tolist() == [CLS, Q, A, B, SEP, MASK, MASK, MASK]
    assert query.attended_len == 5
    assert query.row_mask is None  # expansion tokens have vectors too
    assert query.num_input_tokens == 5
    assert query.type1_start == 8  # one token type


def test_expansion_tokens_can_be_attended_to(wordpiece: Tokenizer) -> None:
    role_format = RoleFormat(expansion=QueryExpansion(MASK, 8, is_attended=True))
    renderer = Renderer(
        wordpiece, RendererSettings(vocab_size=30522, hidden_size=384, role_formats={"query": role_format})
    )

    assert render_one(renderer, "a", "query").attended_len is None


def test_a_query_of_full_length_attends_to_all_its_tokens(renderer: Renderer) -> None:
    full, longer = render_one(renderer, "a b c a b", "query"), render_one(renderer, "a b c a b c a b c", "query")

    assert full.token_ids.tolist() == longer.token_ids.tolist() == [CLS, Q, A, B, C, A, B, SEP]
    assert full.attended_len is longer.attended_len is None
    assert (full.num_input_tokens, longer.num_input_tokens) == (8, 12)


def test_a_document_gets_its_marker_is_truncated_and_its_punctuation_is_skipped(renderer: Renderer) -> None:
    document = render_one(renderer, "a, b, c", "document")

    assert document.token_ids.tolist() == [CLS, D, A, COMMA, B, SEP]
    assert document.row_mask is not None and document.row_mask.tolist() == [True, True, True, False, True, True]
    assert document.attended_len is None
    assert document.num_input_tokens == 8
    assert render_one(renderer, "a b", "document").row_mask is None


def test_a_text_without_a_role_is_a_document(renderer: Renderer) -> None:
    assert render_ids(renderer, "a b") == render_ids(renderer, "a b", "document") == [CLS, D, A, B, SEP]


def test_a_model_without_role_formats_treats_all_roles_the_same(wordpiece: Tokenizer) -> None:
    plain = Renderer(wordpiece, RendererSettings(vocab_size=30522, hidden_size=384))

    assert render_ids(plain, "a b", "query") == render_ids(plain, "a b", "document") == [CLS, A, B, SEP]


def test_truncate_prompt_tokens_overrides_the_length_of_the_role(renderer: Renderer) -> None:
    assert len(render_ids(renderer, "a " * 20, truncate_prompt_tokens=12)) == 12
    assert len(render_ids(renderer, "a " * 20, truncate_prompt_tokens=-1)) == 6  # the length of the role format
    assert render_ids(renderer, "a", "query", truncate_prompt_tokens=6) == [CLS, Q, A, SEP, MASK, MASK]
    assert render_ids(renderer, "a b c", "query", truncate_prompt_tokens=2) == [CLS, Q]


def test_no_role_exceeds_the_model_length(renderer: Renderer) -> None:
    assert render_ids(renderer, "a", "query", max_len=5) == [CLS, Q, A, SEP, MASK]
    assert len(render_ids(renderer, "a " * 9, "document", max_len=5)) == 5


def test_a_text_is_truncated_on_the_requested_side(renderer: Renderer) -> None:
    assert render_ids(renderer, "a a a b c", truncation_side="left") == [CLS, D, A, B, C, SEP]


def test_whitespace_around_a_text_is_stripped_where_the_format_says_so() -> None:
    assert RoleFormat(strip_whitespace=True).format_text("  a b \n", None) == "a b"
    assert RoleFormat().format_text("  a b \n", None) == "  a b \n"


def test_a_prompt_comes_from_the_request_or_the_role_format() -> None:
    role_format = RoleFormat(prompt="passage: ")

    assert role_format.format_text("a", None) == "passage: a"
    assert role_format.format_text("a", "query: ") == "query: a"
    assert role_format.format_text("a", "") == "a"


def test_without_special_tokens_there_are_no_markers(renderer: Renderer) -> None:
    assert render_ids(renderer, "a, b", "query", add_special_tokens=False) == [A, COMMA, B]


def test_token_ids_are_not_changed(renderer: Renderer) -> None:
    rendered = render_one(renderer, [7, COMMA, 9], "document")

    assert rendered.token_ids.tolist() == [7, COMMA, 9]
    assert rendered.row_mask is None


def test_the_marker_is_inserted_after_the_first_token() -> None:
    marked = [
        RoleFormat(marker_id=Q).insert_marker(np.array(ids, dtype=np.int32)).tolist() for ids in ([7, 8, 9], [7], [])
    ]

    assert marked == [[7, Q, 8, 9], [7, Q], [Q]]


def test_a_huge_document_is_cropped_before_tokenization(renderer: Renderer) -> None:
    rendered = render_one(renderer, "a " * 1_000_000)

    assert rendered.token_ids.tolist() == [CLS, D, A, A, A, SEP]
    assert not rendered.is_input_count_exact

"""Query and document as one sequence: joined by special tokens and token types, or by a score template."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from msgspec.structs import replace

from cenote.errors import BadRequest
from cenote.inputs.limits import split_budget
from cenote.inputs.template_kwargs import check_template_kwargs
from cenote.inputs.tokenizer import SpecialTokensTemplate, TokenIds
from cenote.protocol.input_types import ScoreTemplate, TextPair
from cenote.protocol.params import TruncationSide

# rendered in place of a document, to find the text that a template puts around it
DOCUMENT_PLACEHOLDER = "\0a document\0"


def render_pair(
    pair: TextPair,
    special_tokens: Mapping[str, str] = MappingProxyType({}),
    default_template: ScoreTemplate | None = None,
) -> str:
    """Return the pair as one text: its template or the default one rendered, else query and document concatenated."""
    template = default_template if pair.template is None else ScoreTemplate(pair.template, "given")
    if template is None:
        return pair.query + pair.document
    check_template_kwargs(pair.template_kwargs, "score")
    if (
        template.is_document_verbatim
        and (around := _render_around_document(_PairTemplate(pair, special_tokens, template))) is not None
    ):
        return pair.document.join(around)
    return _run_score_template(pair, special_tokens, template)


def _run_score_template(pair: TextPair, special_tokens: Mapping[str, str], template: ScoreTemplate) -> str:
    from cenote.inputs.jinja_sandbox import run_template  # with Jinja, which most rerankers do without

    contents = {"query": pair.query, "document": pair.document}
    requested = pair.template_kwargs.get("instruction") or pair.template_kwargs.get("instruct")
    if template.has_system_message and (instruction := requested or template.instruction):
        contents = {"system": str(instruction), **contents}
    variables = {
        **special_tokens,
        **template.variables,
        **pair.template_kwargs,
        "messages": [
            {"role": role, "content": [{"type": "text", "text": text}] if template.has_content_parts else text}
            for role, text in contents.items()
        ],
        "tools": None,
    }
    return run_template(template.text, variables, name="score", num_chars=sum(map(len, contents.values())))


class _PairTemplate:
    """Cache key of everything in a rendered pair except the document: equal for all documents of a query."""

    def __init__(self, pair: TextPair, special_tokens: Mapping[str, str], template: ScoreTemplate) -> None:
        self.pair = pair
        self.special_tokens = special_tokens
        self.template = template
        self.key = (pair.query, repr(pair.template_kwargs), id(special_tokens), template.text)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PairTemplate) and self.key == other.key


@lru_cache(maxsize=8)  # running a template takes longer than tokenizing a short document
def _render_around_document(pair_template: _PairTemplate) -> tuple[str, str] | None:
    """Return the rendered text before and after the document; None if the document is not there exactly once."""
    before, placeholder, after = _run_score_template(
        replace(pair_template.pair, document=DOCUMENT_PLACEHOLDER), pair_template.special_tokens, pair_template.template
    ).partition(DOCUMENT_PLACEHOLDER)
    return (before, after) if placeholder and DOCUMENT_PLACEHOLDER not in after else None


def render_around_document(
    pair: TextPair, special_tokens: Mapping[str, str], template: ScoreTemplate
) -> tuple[str, str] | None:
    """Return the rendered text before and after the document; None if the document is not there exactly once."""
    check_template_kwargs(pair.template_kwargs, "score")
    return _render_around_document(_PairTemplate(pair, special_tokens, template))


def uses_query_and_document(template: ScoreTemplate, special_tokens: Mapping[str, str]) -> bool:
    """Whether the rendered text depends on query and document; chat templates often ignore these two roles."""
    pairs = (TextPair("0", "0"), TextPair("1", "0"), TextPair("0", "1"))
    try:
        return len({render_pair(pair, special_tokens, template) for pair in pairs}) == len(pairs)
    except BadRequest:
        return False


def join_ids(
    template: SpecialTokensTemplate,
    query_ids: TokenIds,
    document_ids: TokenIds,
    max_tokens: int | None,
    truncation_side: TruncationSide,
) -> tuple[TokenIds, int]:
    """Return the ids of the pair and the index of the first token of type 1.

    Truncation to `max_tokens` is longest-first and keeps all special tokens.
    """
    if max_tokens is not None:
        budget = max_tokens - template.num_tokens
        query_len, document_len = split_budget([len(query_ids), len(document_ids)], budget)
        query_ids = truncate_ids(query_ids, query_len, truncation_side)
        document_ids = truncate_ids(document_ids, document_len, truncation_side)
    ids = np.concatenate((template.prefix, query_ids, template.separator, document_ids, template.suffix))
    return ids, len(template.prefix) + len(query_ids) + len(template.separator) if template.second_type_id else len(ids)


def truncate_ids(ids: TokenIds, max_tokens: int, truncation_side: TruncationSide) -> TokenIds:
    """Return the first `max_tokens` ids, or the last ones if truncated on the left."""
    if len(ids) <= max_tokens:
        return ids
    return ids[:max_tokens] if truncation_side == "right" else ids[len(ids) - max_tokens :]

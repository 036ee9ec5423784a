"""Query and document in one sequence: special tokens and types, or a template that joins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from cenote.errors import BadRequest
from cenote.inputs.jinja_sandbox import run_template
from cenote.inputs.tokenizer import SpecialTokensTemplate, TokenIds
from cenote.protocol.input_types import ScoreTemplate, TextPair
from cenote.protocol.params import TruncationSide

# stands for any document where only the text around it is wanted
DOCUMENT_PLACEHOLDER = "\0a document\0"
RESERVED_TEMPLATE_KWARGS = frozenset(("chat_template", "messages", "tools", "tokenize"))


def render_pair(
    pair: TextPair,
    special_tokens: Mapping[str, str] = MappingProxyType({}),
    default_template: ScoreTemplate | None = None,
) -> str:
    """The pair as one text: by its template, or the model's own, else the document straight after the query."""
    template = default_template if pair.template is None else ScoreTemplate(pair.template, "given")
    if template is None:
        return pair.query + pair.document
    check_score_template_kwargs(pair.template_kwargs)
    if (
        template.is_document_verbatim
        and (around := _render_around_document(_PairTemplate(pair, special_tokens, template))) is not None
    ):
        return pair.document.join(around)
    return _run_score_template(pair, special_tokens, template)


def _run_score_template(pair: TextPair, special_tokens: Mapping[str, str], template: ScoreTemplate) -> str:
    contents = {"query": pair.query, "document": pair.document}
    given = pair.template_kwargs.get("instruction") or pair.template_kwargs.get("instruct")
    if template.has_system_message and (instruction := given or template.instruction):
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
    """A pair and its template without the document: alike for all documents of a query."""

    def __init__(self, pair: TextPair, special_tokens: Mapping[str, str], template: ScoreTemplate) -> None:
        self.pair = pair
        self.special_tokens = special_tokens
        self.template = template
        self.key = (pair.query, repr(pair.template_kwargs), id(special_tokens), template.text)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PairTemplate) and self.key == other.key


@lru_cache(maxsize=8)  # templates are programs: to run one takes longer than to read a short document
def _render_around_document(pair_template: _PairTemplate) -> tuple[str, str] | None:
    """What a template writes before the document and behind it."""
    before, found, after = _run_score_template(
        replace(pair_template.pair, document=DOCUMENT_PLACEHOLDER), pair_template.special_tokens, pair_template.template
    ).partition(DOCUMENT_PLACEHOLDER)
    return (before, after) if found and DOCUMENT_PLACEHOLDER not in after else None


def uses_query_and_document(template: ScoreTemplate, special_tokens: Mapping[str, str]) -> bool:
    """Whether query and document change what it writes: the chat template of a conversation drops such roles."""
    pairs = (TextPair("0", "0"), TextPair("1", "0"), TextPair("0", "1"))
    try:
        return len({render_pair(pair, special_tokens, template) for pair in pairs}) == len(pairs)
    except BadRequest:
        return False


def check_score_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    if not isinstance(kwargs, Mapping):
        raise BadRequest("chat_template_kwargs must be a mapping", param="chat_template_kwargs", value=kwargs)
    if reserved := RESERVED_TEMPLATE_KWARGS & set(kwargs):
        raise BadRequest(
            "chat_template_kwargs contains reserved keys that conflict with fixed scorer arguments: "
            f"{sorted(reserved)}",
            param="chat_template_kwargs",
        )


def split_longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """How many tokens of each text stay when both must fit: the longer one gives first."""
    if first + second <= budget:
        return first, second
    shorter, longer = sorted((first, second))
    longer = shorter if shorter > budget else max(shorter, budget - shorter)
    if shorter + longer > budget:
        shorter = budget // 2
        longer = shorter + budget % 2
    return (shorter, longer) if first <= second else (longer, shorter)


def join_ids(
    template: SpecialTokensTemplate,
    query_ids: TokenIds,
    document_ids: TokenIds,
    max_tokens: int | None,
    truncation_side: TruncationSide,
) -> tuple[TokenIds, int]:
    """The ids of the pair, cut to `max_tokens` with its special tokens whole, and where the second type begins."""
    if max_tokens is not None:
        room = max(0, max_tokens - template.num_tokens)
        keep_query, keep_document = split_longest_first(len(query_ids), len(document_ids), room)
        query_ids, document_ids = (
            truncate_ids(query_ids, keep_query, truncation_side),
            truncate_ids(document_ids, keep_document, truncation_side),
        )
    ids = np.concatenate((template.prefix, query_ids, template.separator, document_ids, template.suffix))
    return ids, len(template.prefix) + len(query_ids) + len(template.separator) if template.second_type_id else len(ids)


def truncate_ids(ids: TokenIds, max_tokens: int, truncation_side: TruncationSide) -> TokenIds:
    """The first `keep` ids, or the last when the left side is cut."""
    if len(ids) <= max_tokens:
        return ids
    return ids[:max_tokens] if truncation_side == "right" else ids[len(ids) - max_tokens :]

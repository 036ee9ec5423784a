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
from cenote.inputs.tokenizer import Frame, TokenIds
from cenote.protocol.input_types import Pair, ScoreTemplate
from cenote.protocol.requests import TruncationSide

# stands for any document where only the text around it is wanted
DOCUMENT = "\0a document\0"
RESERVED = frozenset(("chat_template", "messages", "tools", "tokenize"))


def joined_text(
    pair: Pair, special_tokens: Mapping[str, str] = MappingProxyType({}), own: ScoreTemplate | None = None
) -> str:
    """The pair as one text: by its template, or the model's own, else the document straight after the query."""
    template = own if pair.template is None else ScoreTemplate(pair.template, "given")
    if template is None:
        return pair.query + pair.document
    check_template_kwargs(pair.template_kwargs)
    if template.verbatim and (around := _around(_Frame(pair, special_tokens, template))) is not None:
        return pair.document.join(around)
    return _written(pair, special_tokens, template)


def _written(pair: Pair, special_tokens: Mapping[str, str], template: ScoreTemplate) -> str:
    contents = {"query": pair.query, "document": pair.document}
    given = pair.template_kwargs.get("instruction") or pair.template_kwargs.get("instruct")
    if template.has_system and (instruction := given or template.instruction):
        contents = {"system": str(instruction), **contents}
    variables = {
        **special_tokens,
        **template.variables,
        **pair.template_kwargs,
        "messages": [
            {"role": role, "content": [{"type": "text", "text": text}] if template.in_parts else text}
            for role, text in contents.items()
        ],
        "tools": None,
    }
    return run_template(template.text, variables, name="score", num_chars=sum(map(len, contents.values())))


class _Frame:
    """A pair and its template without the document: alike for all documents of a query."""

    def __init__(self, pair: Pair, special_tokens: Mapping[str, str], template: ScoreTemplate) -> None:
        self.pair = pair
        self.special_tokens = special_tokens
        self.template = template
        self.key = (pair.query, repr(pair.template_kwargs), id(special_tokens), template.text)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frame) and self.key == other.key


@lru_cache(maxsize=8)  # templates are programs: to run one takes longer than to read a short document
def _around(frame: _Frame) -> tuple[str, str] | None:
    """What a template writes before the document and behind it."""
    before, found, after = _written(
        replace(frame.pair, document=DOCUMENT), frame.special_tokens, frame.template
    ).partition(DOCUMENT)
    return (before, after) if found and DOCUMENT not in after else None


def reads_both(template: ScoreTemplate, special_tokens: Mapping[str, str]) -> bool:
    """Whether query and document change what it writes: the chat template of a conversation drops such roles."""
    pairs = (Pair("0", "0"), Pair("1", "0"), Pair("0", "1"))
    try:
        return len({joined_text(pair, special_tokens, template) for pair in pairs}) == len(pairs)
    except BadRequest:
        return False


def check_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    if not isinstance(kwargs, Mapping):
        raise BadRequest("chat_template_kwargs must be a mapping", param="chat_template_kwargs", value=kwargs)
    if reserved := RESERVED & set(kwargs):
        raise BadRequest(
            "chat_template_kwargs contains reserved keys that conflict with fixed scorer arguments: "
            f"{sorted(reserved)}",
            param="chat_template_kwargs",
        )


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay when both must fit: the longer one gives first."""
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = shorter + room % 2
    return (shorter, longer) if first <= second else (longer, shorter)


def join(
    frame: Frame, query: TokenIds, document: TokenIds, max_tokens: int | None, side: TruncationSide
) -> tuple[TokenIds, int]:
    """The ids of the pair, cut to `max_tokens` with its special tokens whole, and where the second type begins."""
    if max_tokens is not None:
        room = max(0, max_tokens - frame.num_tokens)
        keep_query, keep_document = longest_first(len(query), len(document), room)
        query, document = cut(query, keep_query, side), cut(document, keep_document, side)
    ids = np.concatenate((frame.prefix, query, frame.middle, document, frame.suffix))
    return ids, len(frame.prefix) + len(query) + len(frame.middle) if frame.second_type else len(ids)


def cut(ids: TokenIds, keep: int, side: TruncationSide) -> TokenIds:
    """The first `keep` ids, or the last when the left side is cut."""
    if len(ids) <= keep:
        return ids
    return ids[:keep] if side == "right" else ids[len(ids) - keep :]

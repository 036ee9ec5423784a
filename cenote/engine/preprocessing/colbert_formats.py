"""From what a ColBERT's files say of queries and documents to the tokens that they mean."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cenote.errors import LoadError
from cenote.inputs.colbert_format import Expansion, Side
from cenote.loading.colbert import ExpansionSettings, LateInteraction, SideSettings
from cenote.loading.load import LoadedModel
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.protocol.requests import Role

logger = logging.getLogger("cenote")


def sides(model: LoadedModel) -> Mapping[Role, Side]:
    """How each role is read; empty where both are read like any text."""
    settings, tokenizer = model.description.late_interaction, model.tokenizer
    if settings is None:
        return {}
    expansion = None if settings.expansion is None else _expansion(settings.expansion, tokenizer, settings.source)
    return {
        "query": _side(settings.query, "query", settings, tokenizer, expansion),
        "document": _side(settings.document, "document", settings, tokenizer, None),
    }


def _side(
    side: SideSettings, role: Role, settings: LateInteraction, tokenizer: TokenizerFiles, expansion: Expansion | None
) -> Side:
    marker = tokenizer.tokenizer.token_to_id(side.marker) if side.marker else None
    if side.marker and marker is None:
        raise LoadError(
            f"{settings.source}: the marker of a {role}, {side.marker!r}, is no token of the tokenizer; name another, "
            f'or none, with hf_overrides={{"{role}_prefix": ""}}, or read texts as they are with plain_late_interaction'
        )
    found = [tokenizer.tokenizer.token_to_id(word) for word in side.skiplist]
    if settings.like_pylate:
        found = [tokenizer.unk_token_id if token is None else token for token in found]
    return Side(
        length=side.length,
        marker=marker,
        prompt=side.prompt,
        strips=settings.like_pylate,
        expansion=expansion,
        skipped=tuple(sorted({token for token in found if token is not None})),
    )


def _expansion(settings: ExpansionSettings, tokenizer: TokenizerFiles, source: str) -> Expansion:
    names = (settings.token, *(tokenizer.special_tokens.get(name) for name in ("mask_token", "eos_token", "pad_token")))
    name = next((name for name in names if name is not None), None)
    token = None if name is None else tokenizer.tokenizer.token_to_id(name)
    if token is None:
        raise LoadError(
            f"{source}: queries are expanded, but the tokenizer has no {name or 'mask token'} to do it with; "
            'hf_overrides={"do_query_expansion": false} leaves them as they are'
        )
    if tokenizer.info.get("padding_side") == "left":
        logger.warning("queries are expanded at their end, although the tokenizer fills texts up at their beginning")
    return Expansion(token, settings.length, settings.attended)

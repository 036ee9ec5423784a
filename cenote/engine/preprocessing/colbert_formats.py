"""From what a ColBERT's files say of queries and documents to the tokens that they mean."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cenote.errors import LoadError
from cenote.inputs.colbert_format import QueryExpansion, RoleFormat
from cenote.loading.colbert import ExpansionSettings, LateInteractionSettings, RoleSettings
from cenote.loading.load import LoadedModel
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.protocol.params import Role

logger = logging.getLogger("cenote")


def make_role_formats(model: LoadedModel) -> Mapping[Role, RoleFormat]:
    """How each role is read; empty where both are read like any text."""
    settings, tokenizer = model.description.late_interaction, model.tokenizer
    if settings is None:
        return {}
    expansion = (
        None if settings.expansion is None else _make_query_expansion(settings.expansion, tokenizer, settings.source)
    )
    return {
        "query": _make_role_format(settings.query, "query", settings, tokenizer, expansion),
        "document": _make_role_format(settings.document, "document", settings, tokenizer, None),
    }


def _make_role_format(
    role_settings: RoleSettings,
    role: Role,
    settings: LateInteractionSettings,
    tokenizer: TokenizerFiles,
    expansion: QueryExpansion | None,
) -> RoleFormat:
    marker = tokenizer.tokenizer.token_to_id(role_settings.marker) if role_settings.marker else None
    if role_settings.marker and marker is None:
        raise LoadError(
            f"{settings.source}: the marker of a {role}, {role_settings.marker!r}, is no token of the tokenizer; name "
            f"another, "
            f'or none, with hf_overrides={{"{role}_prefix": ""}}, or read texts as they are with plain_late_interaction'
        )
    found = [tokenizer.tokenizer.token_to_id(word) for word in role_settings.skiplist]
    if settings.uses_pylate_rules:
        found = [tokenizer.unk_token_id if token is None else token for token in found]
    return RoleFormat(
        max_length=role_settings.max_length,
        marker_id=marker,
        prompt=role_settings.prompt,
        strip_whitespace=settings.uses_pylate_rules,
        expansion=expansion,
        skiplist_ids=tuple(sorted({token for token in found if token is not None})),
    )


def _make_query_expansion(settings: ExpansionSettings, tokenizer: TokenizerFiles, source: str) -> QueryExpansion:
    names = (settings.token, *(tokenizer.special_tokens.get(name) for name in ("mask_token", "eos_token", "pad_token")))
    name = next((name for name in names if name is not None), None)
    token = None if name is None else tokenizer.tokenizer.token_to_id(name)
    if token is None:
        raise LoadError(
            f"{source}: queries are expanded, but the tokenizer has no {name or 'mask token'} to do it with; "
            'hf_overrides={"do_query_expansion": false} leaves them as they are'
        )
    if tokenizer.tokenizer_config.get("padding_side") == "left":
        logger.warning("queries are expanded at their end, although the tokenizer fills texts up at their beginning")
    return QueryExpansion(token, settings.length, settings.is_attended)

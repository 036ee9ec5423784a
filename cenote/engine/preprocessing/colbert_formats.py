"""Resolve the query and document formats of a ColBERT model's files to token ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cenote.errors import LoadError
from cenote.inputs.colbert_format import QueryExpansion, RoleFormat
from cenote.loading.colbert import ExpansionSettings, LateInteractionSettings, RoleSettings
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.protocol.params import Role

logger = logging.getLogger("cenote")


def make_role_formats(model: LoadedModel) -> Mapping[Role, RoleFormat]:
    """Return the format of each role; empty if the model has none."""
    late_interaction, tokenizer = model.description.late_interaction, model.tokenizer
    if late_interaction is None:
        return {}
    if late_interaction.has_no_settings:
        logger.info(
            "late interaction: %s (%s). Set query_prefix, document_prefix, query_length, document_length, "
            "do_query_expansion or skiplist_words with hf_overrides, or take the defaults of the ColBERT library with "
            "plain_late_interaction=False (--no-plain-late-interaction)",
            late_interaction.summary.value,
            late_interaction.summary.source,
        )
    if (settings := late_interaction.settings) is None:
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
            f"{settings.source}: the {role} marker {role_settings.marker!r} is not a token of the tokenizer; set "
            f'another or none with hf_overrides={{"{role}_prefix": ""}}, or disable markers with '
            "plain_late_interaction"
        )
    skiplist = [tokenizer.tokenizer.token_to_id(word) for word in role_settings.skiplist]
    if settings.uses_pylate_rules:
        skiplist = [tokenizer.unk_token_id if token is None else token for token in skiplist]
    return RoleFormat(
        max_length=role_settings.max_length,
        marker_id=marker,
        prompt=role_settings.prompt,
        strip_whitespace=settings.uses_pylate_rules,
        expansion=expansion,
        suffix_ids=tuple(_find_suffix_id(token, role, tokenizer) for token in role_settings.suffix_tokens),
        skiplist_ids=tuple(sorted({token for token in skiplist if token is not None})),
    )


def _find_suffix_id(token: str, role: Role, tokenizer: TokenizerFiles) -> int:
    """Return the id of a token after a text; a byte-level vocabulary spells a newline differently."""
    spellings = (token, "\u010a", "<0x0A>") if token == "\n" else (token,)
    ids = (tokenizer.tokenizer.token_to_id(spelling) for spelling in spellings)
    found = next((token_id for token_id in ids if token_id is not None), None)
    if found is None:
        raise LoadError(
            f"the tokenizer has no token {token!r}, which the model's processor appends to a {role}; disable this with "
            "plain_late_interaction"
        )
    return found


def _make_query_expansion(settings: ExpansionSettings, tokenizer: TokenizerFiles, source: str) -> QueryExpansion:
    names = (settings.token, *(tokenizer.special_tokens.get(name) for name in ("mask_token", "eos_token", "pad_token")))
    name = next((name for name in names if name is not None), None)
    token = None if name is None else tokenizer.tokenizer.token_to_id(name)
    if token is None:
        raise LoadError(
            f"{source}: query expansion needs the token {name or 'mask token'}, which the tokenizer does not have; "
            'disable it with hf_overrides={"do_query_expansion": false}'
        )
    if tokenizer.tokenizer_config.get("padding_side") == "left":
        logger.warning("queries are expanded at the end, although the tokenizer pads on the left")
    return QueryExpansion(token, settings.length, settings.is_attended)

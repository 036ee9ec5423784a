"""Find a checkpoint and read its layout: the first stage of loading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.adapter_base import with_base_model
from cenote.loading.checkpoint import Checkpoint, find_checkpoint
from cenote.loading.default_model import HUB_NAME, add_install_hint, find_default_model
from cenote.loading.hf_config import read_config
from cenote.loading.known_models import apply_known_code, apply_known_encoder
from cenote.loading.layouts.gliner import read_gliner
from cenote.loading.layouts.gliner2 import read_gliner2
from cenote.loading.layouts.kalm_reranker import read_kalm_reranker
from cenote.loading.layouts.layout import Layout, explain_invalid_values, read_files
from cenote.loading.layouts.static_embeddings import read_static_embeddings
from cenote.loading.layouts.v_splade import read_v_splade
from cenote.loading.model_card import PublishedCard
from cenote.loading.module_list import locate_encoder

# returns None for a checkpoint of another layout; `needs_weights` is False where only the other files are downloaded
Reader = Callable[[Checkpoint, EngineConfig, bool], Layout | None]


def read_layout(options: EngineConfig, route: str | None = None, *, needs_weights: bool = True) -> Layout:
    """Return the layout of the first reader that claims the checkpoint, with what is known about published models."""
    checkpoint = replace(_find_checkpoint(options, needs_weights), route=route)
    claims = (read(checkpoint, options, needs_weights) for read in READERS)
    layout = next(claim for claim in claims if claim is not None)
    with explain_invalid_values(layout.config):
        layout = replace(layout, card=PublishedCard.from_checkpoint(layout.checkpoint))
        layout = apply_known_encoder(options, apply_known_code(layout))
    if options.tokenizer is None:
        return layout
    revision = options.tokenizer_revision
    find = partial(find_checkpoint, options.tokenizer, revision=revision, hub=options.hub, needs_config=False)
    return replace(layout, find_tokenizer=find)


def read_transformers(checkpoint: Checkpoint, options: EngineConfig, needs_weights: bool) -> Layout:
    """Read config.json as Transformers writes it, and the files of Sentence Transformers."""
    checkpoint = locate_encoder(checkpoint)
    config = read_config(checkpoint, options.hf_overrides)
    return Layout(checkpoint=checkpoint, config=config, files=read_files(checkpoint, config))


# tried in order; the last one takes every checkpoint
READERS: tuple[Reader, ...] = (
    read_v_splade,
    read_gliner,
    read_gliner2,
    read_static_embeddings,
    read_kalm_reranker,
    read_transformers,
)


def _find_checkpoint(options: EngineConfig, needs_weights: bool) -> Checkpoint:
    if options.model is not None:
        found = find_checkpoint(options.model, revision=options.revision, hub=options.hub, needs_weights=needs_weights)
        return with_base_model(found, options.hf_overrides, options.hub, needs_weights=needs_weights)
    try:
        found = find_checkpoint(find_default_model(), hub=options.hub)
    except LoadError as error:
        raise add_install_hint(error) from error
    return replace(found, name=HUB_NAME)

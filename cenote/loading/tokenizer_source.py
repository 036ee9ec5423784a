"""Find the checkpoint that the tokenizer of a model is loaded from."""

from __future__ import annotations

from cenote.config.engine import EngineConfig
from cenote.loading.checkpoint import Checkpoint, find_checkpoint
from cenote.loading.gliner import find_tokenizer_checkpoint
from cenote.loading.model_description import ModelDescription


def find_tokenizer(options: EngineConfig, description: ModelDescription) -> Checkpoint:
    """Return the checkpoint of the option `tokenizer`, or else that of the model."""
    if options.tokenizer is None:
        return find_tokenizer_checkpoint(description.checkpoint, description.config, options.hub)
    return find_checkpoint(options.tokenizer, revision=options.tokenizer_revision, hub=options.hub, needs_config=False)

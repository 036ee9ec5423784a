"""Recognise V-SPLADE, whose config.json names a dense model; it has a table for queries and an encoder for pages."""

from __future__ import annotations

import re
from typing import Any

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.router import Route
from cenote.loading.weights import open_weights
from cenote.protocol.params import Role

MODEL_TYPE = "modernvbert"
WEIGHTS_FILE = "model.safetensors"
NAME = re.compile(r"v[-_]?splade", re.IGNORECASE)
ROUTE_ARCHITECTURES: dict[Role, str] = {"document": "VSplade", "query": "VSpladeQuery"}
# both in one file of weights; the Sentence Transformers files of newer revisions describe the same
V_SPLADE_ROUTES = tuple(
    Route(role, ((architecture, ""),), (role,), WEIGHTS_FILE) for role, architecture in ROUTE_ARCHITECTURES.items()
)


def is_v_splade(checkpoint: Checkpoint) -> bool:
    """Whether a ModernVBERT is V-SPLADE: by its weights, or by names where only the other files are downloaded."""
    config = checkpoint.read_json_object("config.json")
    if config.get("model_type") != MODEL_TYPE:
        return False
    if checkpoint.find_file(WEIGHTS_FILE) is not None:
        from cenote.models.v_splade import HEAD  # on use: it imports vision models, which slows other starts down

        return f"{HEAD}.decoder.weight" in open_weights(checkpoint)
    return any(map(NAME.search, (*checkpoint.candidate_names, str(config.get("auto_map")))))


def read_v_splade_config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return config.json with the architecture of the route and the vocabulary of the vectors; None: another model."""
    if not is_v_splade(checkpoint):
        return None
    config = checkpoint.read_json_object("config.json")
    text = config.get("text_config")
    if not isinstance(text, dict) or not isinstance(text.get("vocab_size"), int):
        raise LoadError(f"{checkpoint.folder / 'config.json'} has no vocab_size in text_config; download it again")
    size, num_additional = text["vocab_size"], config.get("additional_vocab_size") or 0
    # newer configs count the additional tokens, of which the image token is one
    num_words = size - num_additional if config.get("image_token_id", size) < size else size
    return {
        **config,
        "architectures": [ROUTE_ARCHITECTURES["query" if checkpoint.route == "query" else "document"]],
        "vocab_size": num_words,
        "text_config": {**text, "vocab_size": num_words},
    }

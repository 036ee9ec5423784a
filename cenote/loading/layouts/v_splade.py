"""Recognise V-SPLADE, whose config.json names a dense model; it has a table for queries and an encoder for pages."""

from __future__ import annotations

import re

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.hf_config import read_config
from cenote.loading.layouts.layout import Layout
from cenote.loading.layouts.static_embeddings import read_sparse_length
from cenote.loading.router import ModuleRoute
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.loading.weights import open_weights
from cenote.protocol.params import Role

MODEL_TYPE = "modernvbert"
WEIGHTS_FILE = "model.safetensors"
NAME = re.compile(r"v[-_]?splade", re.IGNORECASE)
ROUTE_ARCHITECTURES: dict[Role, str] = {"document": "VSplade", "query": "VSpladeQuery"}
# both in one file of weights; the Sentence Transformers files of newer revisions describe the same
ROUTES = tuple(
    ModuleRoute(role, ((architecture, ""),), (role,), WEIGHTS_FILE)
    for role, architecture in ROUTE_ARCHITECTURES.items()
)


def read_v_splade(checkpoint: Checkpoint, options: EngineConfig, needs_weights: bool) -> Layout | None:
    """Read config.json with the architecture of the route and the vocabulary of the vectors."""
    values = checkpoint.read_json_object("config.json")
    if values.get("model_type") != MODEL_TYPE or not _is_v_splade(checkpoint, str(values.get("auto_map"))):
        return None
    text = values.get("text_config")
    if not isinstance(text, dict) or not isinstance(text.get("vocab_size"), int):
        raise LoadError(f"{checkpoint.folder / 'config.json'} has no vocab_size in text_config; download it again")
    size, num_additional = text["vocab_size"], values.get("additional_vocab_size") or 0
    # newer configs count the additional tokens, of which the image token is one
    num_words = size - num_additional if values.get("image_token_id", size) < size else size
    values |= {
        "architectures": [ROUTE_ARCHITECTURES["query" if checkpoint.route == "query" else "document"]],
        "vocab_size": num_words,
        "text_config": {**text, "vocab_size": num_words},
    }
    return Layout(
        checkpoint=checkpoint,
        config=read_config(checkpoint, options.hf_overrides, values),
        files=SentenceTransformersFiles(
            routes=ROUTES,
            similarity_fn_name="dot",
            max_length=read_sparse_length(checkpoint) if checkpoint.route == "query" else None,
        ),
    )


def _is_v_splade(checkpoint: Checkpoint, code: str) -> bool:
    """Whether a ModernVBERT is V-SPLADE: by its weights, or by names where only the other files are downloaded."""
    if checkpoint.find_file(WEIGHTS_FILE) is None:
        return any(map(NAME.search, (*checkpoint.candidate_names, code)))
    from cenote.models.v_splade import HEAD  # on use: it imports vision models, which slows other starts down

    return f"{HEAD}.decoder.weight" in open_weights(checkpoint)

"""GLiNER2 checkpoints: config.json describes the heads, encoder_config/config.json the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from cenote.errors import LoadError
from cenote.layers.counted_span_head import COUNTING_LAYERS
from cenote.loading.adapter_base import WEIGHT_FILES
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.weights import open_weights
from cenote.models.architecture import HFConfig
from cenote.models.gliner2 import ENCODER_PREFIX, PROMPT_TOKENS

ARCHITECTURE, BOUNDARY_ARCHITECTURE = "GLiNER2", "GLiNER2.5"
MODEL_TYPE = "extractor"
ENCODER_CONFIG = "encoder_config/config.json"
EMBEDDINGS = f"{ENCODER_PREFIX}embeddings.word_embeddings.weight"
ALTERNATIVE = "use a model such as fastino/gliner2.5-base-v1 or fastino/gliner2-base-v1, or the gliner2 package"
# keys that change the model, and the values that are supported; the first one is the default
SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "architecture": ("span", None, "boundary"),
    "token_pooling": ("first",),
}
SUPPORTED_SPAN: Mapping[str, tuple[Any, ...]] = {"counting_layer": tuple(COUNTING_LAYERS)}
# those of all published models
SUPPORTED_BOUNDARY: Mapping[str, tuple[Any, ...]] = {
    "candidate_pool": ("shared",),
    "content_soft_max_pool": (False,),
    "adaptive_threshold": (False,),
    "overlap_policy": ("flat",),
}
# values of the gliner2 package for keys that boundary_head does not have
BOUNDARY_DEFAULTS: Mapping[str, Any] = {
    "boundary_dim": 128,
    "pair_dim": 128,
    "enable_span_content": False,
    "content_dim": 64,
    "boundary_refinement_layers": 1,
    "boundary_ffn_multiplier": 2.0,
    "boundary_attention_layers": 0,
    "boundary_attention_heads": 4,
    "boundary_attention_window": 0,
    "use_inside_evidence": True,
    "candidate_pool": "per_query",
    "pool_boundary_top_k": 64,
    "pool_size": 384,
    "min_pool_per_query": 8,
    "candidate_attention_layers": 2,
    "candidate_attention_heads": 4,
    "query_attention_layers": 1,
    "enable_abstention": True,
    "abstention_threshold": 0.5,
    "pair_temperature": 1.0,
}


def read_gliner2_config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the config of the encoder with config.json as `gliner`; None for other models."""
    settings = checkpoint.read_json_object("config.json")
    if settings.get("model_type") != MODEL_TYPE:
        return None
    source = checkpoint.folder / "config.json"
    _check_supported(source, settings, SUPPORTED)
    is_boundary = settings.get("architecture") == "boundary"
    if is_boundary:
        heads = {"max_len": settings.get("max_len"), **BOUNDARY_DEFAULTS, **(settings.get("boundary_head") or {})}
    else:  # newer versions of the gliner2 package write the settings of the span head in a table of their own
        heads = {**settings, **settings.get("span_head", {})}
    _check_supported(source, heads, SUPPORTED_BOUNDARY if is_boundary else SUPPORTED_SPAN)
    checkpoint.require_file(ENCODER_CONFIG)
    encoder = checkpoint.read_json_object(ENCODER_CONFIG)
    if (kind := encoder.get("model_type")) != "deberta-v2":
        raise LoadError(f"{source}: the encoder {kind} is not supported, only deberta-v2; {ALTERNATIVE}")
    values = {**encoder, "architectures": [BOUNDARY_ARCHITECTURE if is_boundary else ARCHITECTURE], "gliner": heads}
    if any(checkpoint.find_file(file) is not None for file in WEIGHT_FILES):
        weights = open_weights(checkpoint)
        if EMBEDDINGS in weights:  # with rows for the tokens of the prompt
            values["vocab_size"] = weights.get(EMBEDDINGS).shape[0]
    return values


def add_schema_tokens(tokenizer: Tokenizer, config: HFConfig) -> None:
    """Add the tokens of the prompt that the files leave to the gliner2 package; check that they have embeddings."""
    missing = [token for token in PROMPT_TOKENS if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in missing])
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    last = max(PROMPT_TOKENS, key=vocabulary.__getitem__)
    if vocabulary[last] >= config.vocab_size:
        raise LoadError(
            f"{config.source}: the tokenizer gives {last!r} the id {vocabulary[last]}, the checkpoint has "
            f"{config.vocab_size} embeddings; set the tokenizer option to that of the model"
        )


def _check_supported(source: Path, settings: Mapping[str, Any], supported: Mapping[str, tuple[Any, ...]]) -> None:
    for key, values in supported.items():
        if (value := settings.get(key, values[0])) not in values:
            known = " or ".join(repr(choice) for choice in values if choice is not None)
            raise LoadError(f"{source}: {key} {value!r} is not supported, only {known}; {ALTERNATIVE}")

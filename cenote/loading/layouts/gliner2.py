"""GLiNER2 checkpoints: config.json describes the heads, encoder_config/config.json the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.config.engine import EngineConfig
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.hf_config import read_config
from cenote.loading.layouts.gliner import check_encoder, check_supported
from cenote.loading.layouts.layout import Layout, read_files
from cenote.models.gliner2 import ENCODER_PREFIX
from cenote.protocol.spans import COUNTING_LAYERS

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
SUPPORTED_SPAN: Mapping[str, tuple[Any, ...]] = {"counting_layer": COUNTING_LAYERS}
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


def read_gliner2(checkpoint: Checkpoint, options: EngineConfig, needs_weights: bool) -> Layout | None:
    """Read the config of the encoder with config.json as `gliner`."""
    settings = checkpoint.read_json_object("config.json")
    if settings.get("model_type") != MODEL_TYPE:
        return None
    source = checkpoint.folder / "config.json"
    check_supported(source, settings, SUPPORTED, ALTERNATIVE)
    is_boundary = settings.get("architecture") == "boundary"
    if is_boundary:
        heads = {"max_len": settings.get("max_len"), **BOUNDARY_DEFAULTS, **(settings.get("boundary_head") or {})}
    else:  # newer versions of the gliner2 package write the settings of the span head in a table of their own
        heads = {**settings, **settings.get("span_head", {})}
    check_supported(source, heads, SUPPORTED_BOUNDARY if is_boundary else SUPPORTED_SPAN, ALTERNATIVE)
    checkpoint.require_file(ENCODER_CONFIG)
    encoder = checkpoint.read_json_object(ENCODER_CONFIG)
    architecture = BOUNDARY_ARCHITECTURE if is_boundary else ARCHITECTURE
    values = {"model_type": None, **encoder, "architectures": [architecture], "gliner": heads}
    values |= check_encoder(checkpoint, values, source, EMBEDDINGS, ALTERNATIVE)
    config = read_config(checkpoint, options.hf_overrides, values)
    return Layout(checkpoint=checkpoint, config=config, files=read_files(checkpoint, config))

"""GLiNER2.5: GLiNER2 with the boundary architecture; the weights of other tasks are in the file too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.layouts.builders.gliner2 import save_encoder, save_weights
from tests.layouts.registry import builder

# of fastino/gliner2.5-base-v1, without the settings of training
PUBLISHED: dict[str, Any] = {
    **{"boundary_dim": 128, "pair_dim": 128, "content_dim": 64, "enable_span_content": True},
    **{"boundary_attention_heads": 4, "boundary_attention_layers": 2, "boundary_attention_window": 128},
    **{"boundary_ffn_multiplier": 2.0, "boundary_refinement_layers": 1, "use_inside_evidence": True},
    **{"candidate_attention_heads": 4, "candidate_attention_layers": 0, "query_attention_layers": 0},
    **{"candidate_pool": "shared", "pool_boundary_top_k": 32, "pool_size": 192, "min_pool_per_query": 8},
    **{"enable_abstention": True, "abstention_threshold": 0.5, "enable_count_head": True, "adaptive_threshold": False},
    **{"overlap_policy": "flat", "pair_temperature": 1.0, "content_soft_max_pool": False},
    **{"enable_records": True, "enable_relations": True, "record_dim": 128, "record_instance_queries": 32},
    **{"enable_rotary_endpoints": True, "query_conditioned_inside_weight": True, "endpoint_difference_features": True},
    **{"multihead_pair_compat_heads": 8, "reranker_endpoint_compat": True, "dropout": 0.1},
}
SETTINGS: dict[str, Any] = {
    "architecture": "boundary",
    "architecture_version": 1,
    "config_version": 3,
    "max_len": 4096,
    "model_name": "microsoft/deberta-v3-base",
    "model_type": "extractor",
    "token_pooling": "first",
}
Shapes = dict[str, tuple[int, ...]]


def linear(name: str, input_size: int, size: int) -> Shapes:
    return {f"{name}.weight": (size, input_size), f"{name}.bias": (size,)}


def norm(name: str, size: int) -> Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def boundary_shapes(head: dict[str, Any], hidden: int) -> Shapes:
    """Return what makes boundaries and scores them."""
    size, name = head["boundary_dim"], "boundary_head.boundary_encoder"
    inner = int(size * head["boundary_ffn_multiplier"])
    shapes: Shapes = {f"{name}.bos_state": (hidden,), f"{name}.eos_state": (hidden,)}
    shapes |= linear(f"{name}.left_projection", hidden, size) | linear(f"{name}.right_projection", hidden, size)
    shapes |= linear(f"{name}.output_projection", 2 * size, size) | norm(f"{name}.layer_norm", size)
    for layer in range(head["boundary_attention_layers"]):
        block = f"{name}.attention_blocks.{layer}"
        shapes |= norm(f"{block}.norm", size) | linear(f"{block}.qkv_projection", size, 3 * size)
        shapes |= linear(f"{block}.output_projection", size, size)
    for layer in range(head["boundary_refinement_layers"]):
        block = f"{name}.refinement_blocks.{layer}"
        shapes |= norm(f"{block}.norm", size) | linear(f"{block}.input_projection", size, 2 * inner)
        shapes |= linear(f"{block}.output_projection", inner, size)
    name = "boundary_head.boundary_query_head"
    for kind, part, input_size in (("start", "boundary", size), ("end", "boundary", size), ("inside", "text", hidden)):
        shapes |= linear(f"{name}.{kind}_{part}_projection", input_size, size)
        shapes |= linear(f"{name}.{kind}_query_projection", hidden, size)
    return shapes


def candidate_shapes(head: dict[str, Any], hidden: int) -> Shapes:
    """Return what makes candidates and scores them."""
    boundary, size, content = head["boundary_dim"], head["pair_dim"], head["content_dim"]
    shapes: Shapes = {}
    name = "boundary_head.shared_pool_scorer"
    for end in ("start", "end"):
        shapes |= linear(f"boundary_head.shared_pool_builder.{end}_projection", boundary, boundary)
        shapes |= linear(f"{name}.{end}_projection", boundary, size)
    shapes |= linear(f"{name}.length_projection", 3, size) | linear(f"{name}.prior_projection", 1, size)
    if head["enable_span_content"]:
        shapes |= linear(f"{name}.content_pooler.value_projection", hidden, content)
        shapes |= norm(f"{name}.content_pooler.layer_norm", content)
        shapes |= linear(f"{name}.content_projection", content, size)
    shapes |= norm(f"{name}.candidate_norm", size) | linear(f"{name}.query_projection", hidden, size)
    for layer in range(head["candidate_attention_layers"]):
        block = f"{name}.candidate_layers.{layer}"
        shapes |= {f"{block}.relative_bias": (8, head["candidate_attention_heads"])}
        shapes |= linear(f"{block}.qkv", size, 3 * size) | linear(f"{block}.output", size, size)
        shapes |= mlp_shapes(block, size)
    for layer in range(head["query_attention_layers"]):
        block = f"{name}.query_layers.{layer}"
        shapes |= linear(f"{block}.query_in", size, size) | linear(f"{block}.evidence_in", size, size)
        shapes |= {
            f"{block}.attention.in_proj_weight": (3 * size, size),
            f"{block}.attention.in_proj_bias": (3 * size,),
        }
        shapes |= linear(f"{block}.attention.out_proj", size, size) | mlp_shapes(block, size)
    shapes |= linear(f"{name}.film", size, 2 * size)
    return shapes | linear(f"{name}.film_output.0", size, 64) | linear(f"{name}.film_output.3", 64, 1)


def mlp_shapes(block: str, size: int) -> Shapes:
    norms = norm(f"{block}.norm1", size) | norm(f"{block}.norm2", size)
    return norms | linear(f"{block}.ffn.0", size, 4 * size) | linear(f"{block}.ffn.3", 4 * size, size)


def other_shapes(head: dict[str, Any], hidden: int) -> Shapes:
    """Return what entities with shared candidates do not need."""
    boundary, size, content = head["boundary_dim"], head["pair_dim"], head["content_dim"]
    shapes: Shapes = {"record_decoder.null_embed": (128,), "record_decoder.instance_embed": (32, hidden)}
    for name in ("inst", "field", "cand", "q", "k"):
        shapes |= linear(f"record_decoder.{name}_proj", hidden, 128)
    shapes |= linear("record_decoder.v_proj", hidden, hidden) | linear("record_decoder.object_head", hidden, 1)
    shapes |= linear("record_decoder.latent_seed_head", hidden, 1)
    shapes |= linear("relation_scorer.mlp.0", 5 * hidden + 2, hidden) | linear("relation_scorer.mlp.3", hidden, 1)
    shapes |= linear("classifier.0", hidden, 2 * hidden) | linear("classifier.3", 2 * hidden, 1)
    name = "boundary_head.boundary_proposer"
    shapes |= linear(f"{name}.start_pair_projection", boundary, boundary)
    shapes |= linear(f"{name}.end_key_projection", boundary, boundary)
    shapes |= linear(f"{name}.start_query_projection", hidden, boundary // 2)
    name = "boundary_head.pair_scorer"
    for end in ("start", "end"):
        shapes |= linear(f"{name}.{end}_endpoint_projection", boundary, size)
    shapes |= linear(f"{name}.query_gate", hidden, size // 2) | linear(f"{name}.length_query_projection", hidden, 3)
    shapes |= linear(f"{name}.inside_weight", hidden, 1) | linear(f"{name}.compat_mix", 8, 1)
    shapes |= linear(f"{name}.endpoint_difference_projection", 2 * size, 1)
    if head["enable_span_content"]:
        shapes |= linear(f"{name}.content_pooler.value_projection", hidden, content)
        shapes |= norm(f"{name}.content_pooler.layer_norm", content)
        shapes |= linear(f"{name}.content_query_projection", hidden, content) | linear(
            f"{name}.content_bias", content, 1
        )
    shapes |= linear("boundary_head.candidate_encoder", 2 * boundary, hidden)
    return shapes | linear("boundary_head.count_head", hidden, 1)


def save_gliner2_5(folder: Path, *, seed: int = 0, **changes: Any) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Save the model; return its encoder and the weights of its heads."""
    head, encoder = PUBLISHED | changes, save_encoder(folder)
    hidden = encoder.config.hidden_size
    shapes = boundary_shapes(head, hidden) | candidate_shapes(head, hidden) | other_shapes(head, hidden)
    if head["enable_abstention"]:
        shapes |= linear("boundary_head.null_projection", hidden, 1)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        # large enough that every part changes the scores, small enough that few are 0 or 1
        std = 0.3 if len(shape) == 1 else (0.4 if "_layers." in name else 1.2) / shape[-1] ** 0.5
        weights[name] = torch.randn(shape, generator=generator) * std
        if "norm" in name and name.endswith("weight"):
            weights[name] += 1.0
    if head["enable_abstention"]:
        weights["boundary_head.null_projection.bias"] -= 2.0  # most labels have entities
    (folder / "config.json").write_text(json.dumps(SETTINGS | {"boundary_head": head}))
    save_weights(folder, encoder, weights)
    return encoder, weights


@builder
def gliner2_5_base_v1(folder: Path) -> None:
    save_gliner2_5(folder)

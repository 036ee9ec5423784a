"""Jina's rotary XLM-RoBERTa: one encoder below five tasks, each a low-rank change of nearly every weight."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import RopeSpec
from cenote.models.architecture import Architecture, HFConfig, StoredAdapters, rope
from cenote.models.bert import roberta
from cenote.models.weight_table import WeightTable

# how Transformers names every rotary kin of BERT, but for the MLP
ROTARY_NAMES: WeightTable = {
    "embed.tokens": "embeddings.word_embeddings",
    "embed.token_types": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "layers.*.mixer.qkv": [f"layers.*.self_attn.{x}_proj" for x in "qkv"],
    "layers.*.mixer.out": "layers.*.self_attn.o_proj",
    "layers.*.mixer_norm": "layers.*.post_attention_layernorm",
    "layers.*.mlp_norm": "layers.*.post_mlp_layernorm",
}
# how models that were trained with FlashAttention's own BERT are stored
FLASH_NORMS = {
    "embed.norm": "emb_ln",
    "layers.*.mixer_norm": "encoder.layers.*.norm1",
    "layers.*.mlp_norm": "encoder.layers.*.norm2",
}
FLASH_TABLES = {
    "embed.tokens": "embeddings.word_embeddings",
    "embed.token_types": "embeddings.token_type_embeddings",
}
FLASH_LAYERS = {
    "layers.*.mixer.qkv": "encoder.layers.*.mixer.Wqkv",
    "layers.*.mixer.out": "encoder.layers.*.mixer.out_proj",
    "layers.*.mlp.up": "encoder.layers.*.mlp.fc1",
    "layers.*.mlp.down": "encoder.layers.*.mlp.fc2",
}
FLASH_NAMES = FLASH_NORMS | FLASH_TABLES | FLASH_LAYERS
# the same where adapters lie beside every weight that is no norm
PARAMETRIZATION = "parametrizations.weight"
ADAPTED_NAMES: WeightTable = (
    FLASH_NORMS
    | {f"{ours}.weight": f"{name}.{PARAMETRIZATION}.original" for ours, name in (FLASH_TABLES | FLASH_LAYERS).items()}
    | {f"{ours}.bias": f"{name}.bias" for ours, name in FLASH_LAYERS.items()}
)


def jina_v3(config: HFConfig) -> Architecture:
    config = config.otherwise(type_vocab_size=1, num_attention_heads=16, layer_norm_eps=1e-5)
    base = with_rotary(roberta(config), config, rope(config, theta=20000.0))
    mlp = {"layers.*.mlp.up": "layers.*.mlp.fc1", "layers.*.mlp.down": "layers.*.mlp.fc2"}
    return replace(
        base,
        weights={**ROTARY_NAMES, **mlp},
        also=(FLASH_NAMES, ADAPTED_NAMES),
        adapters=stored_adapters(config),
        default_adapters=(*config.get("jina_task", "").split(), "text-matching"),
    )


def with_rotary(base: Architecture, config: HFConfig, turns: RopeSpec) -> Architecture:
    """A kin of BERT that turns its heads instead of learning positions."""
    spec = replace(base.backbone, learned_positions=0, position_offset=0, rope=turns, head_dim=config.get("head_dim"))
    return replace(base, backbone=spec)


def stored_adapters(config: HFConfig) -> StoredAdapters | None:
    """Where the adapters of a checkpoint lie, if it has any; its backbone's prefix stands before their names too."""
    if "lora_adaptations" not in config:
        return None
    # a table is looked up, not multiplied: what is called A there has the rows of the table, as B has elsewhere
    tables = {f"{ours}.weight": _pair(name, "BA") for ours, name in FLASH_TABLES.items()}
    layers = {f"{ours}.weight": _pair(name, "AB") for ours, name in FLASH_LAYERS.items()}
    return StoredAdapters(
        tasks=tuple(config.lora_adaptations),
        scaling=config.get("lora_alpha", 1) / config.get("lora_rank", 4),
        matrices=tables | layers,
    )


def _pair(name: str, order: str) -> tuple[str, str]:
    down, up = (f"{name}.{PARAMETRIZATION}.0.lora_{letter}" for letter in order)
    return down, up

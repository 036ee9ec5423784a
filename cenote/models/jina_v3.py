"""jina-embeddings-v3: XLM-RoBERTa with rotary positions and one LoRA adapter per task."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, StoredAdapters, rope_from_config
from cenote.models.bert import roberta, with_rotary
from cenote.models.checkpoint_names import (
    FLASH_LAYERS,
    FLASH_LORA_NAMES,
    FLASH_NAMES,
    FLASH_TABLES,
    PARAMETRIZATION,
    ROTARY_BERT_NAMES,
)


def jina_v3(config: HFConfig) -> Architecture:
    config = config.with_defaults(type_vocab_size=1, num_attention_heads=16, layer_norm_eps=1e-5)
    base = with_rotary(roberta(config), config, rope_from_config(config, theta=20000.0))
    mlp = {"layers.*.mlp.up": "layers.*.mlp.fc1", "layers.*.mlp.down": "layers.*.mlp.fc2"}
    return replace(
        base,
        weights={**ROTARY_BERT_NAMES, **mlp},
        alternative_weights=(FLASH_NAMES, FLASH_LORA_NAMES),
        adapters=stored_adapters_from_config(config),
        default_adapters=(*config.get("jina_task", "").split(), "text-matching"),
    )


def stored_adapters_from_config(config: HFConfig) -> StoredAdapters | None:
    """Return where the checkpoint stores its LoRA adapters (names without the backbone prefix); None if it has none."""
    if "lora_adaptations" not in config:
        return None
    # an embedding is looked up, not multiplied: its lora_A has the rows of the table, as lora_B of a linear layer has
    tables = {f"{name}.weight": _lora_pair(stored, "BA") for name, stored in FLASH_TABLES.items()}
    layers = {f"{name}.weight": _lora_pair(stored, "AB") for name, stored in FLASH_LAYERS.items()}
    return StoredAdapters(
        tasks=tuple(config.lora_adaptations),
        scaling=config.get("lora_alpha", 1) / config.get("lora_rank", 4),
        matrices=tables | layers,
    )


def _lora_pair(name: str, order: str) -> tuple[str, str]:
    down, up = (f"{name}.{PARAMETRIZATION}.0.lora_{letter}" for letter in order)
    return down, up

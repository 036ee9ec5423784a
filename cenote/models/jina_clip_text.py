"""The text encoders of jina-clip: JinaBERT (v1), and XLM-RoBERTa with rotary positions and an adapter (v2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.checkpoint_names import FLASH_LAYERS, FLASH_LORA_NAMES, FLASH_NAMES, FLASH_NORMS, FLASH_TABLES
from cenote.models.eva import check_values
from cenote.models.jina_bert import jina_bert
from cenote.models.jina_v3 import jina_v3, stored_adapters_from_config
from cenote.models.weight_table import DerivedWeight, WeightTable
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

MAX_LENGTH = 8192  # of both
# config.json names the repository of the text encoder; the sizes are those of its config.json there
TEXT_ENCODERS: dict[str, dict[str, Any]] = {
    "jina-bert-flash-implementation": {
        "vocab_size": 30528,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": MAX_LENGTH,
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
    },
    "jina-embeddings-v3": {
        "vocab_size": 250002,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 8194,
        "pad_token_id": 1,
    },
}
GATED_FLASH_NAMES: WeightTable = {
    **FLASH_NORMS,
    **FLASH_TABLES,
    **FLASH_LAYERS,
    "layers.*.mlp.up": "encoder.layers.*.mlp.gated_layers",
    "layers.*.mlp.down": "encoder.layers.*.mlp.wo",
}


def jina_clip_text(config: HFConfig) -> Architecture:
    stored, changes = str(config.hf_model_name_or_path), config.get("hf_model_config_kwargs", {})
    name = PurePosixPath(stored).name
    if name not in TEXT_ENCODERS:
        known = ", ".join(f"jinaai/{known}" for known in TEXT_ENCODERS)
        raise LoadError(f"{config.source}: hf_model_name_or_path={stored!r} is not supported; expected one of: {known}")
    encoder = HFConfig({**TEXT_ENCODERS[name], **changes}, f"{config.source} hf_model_config_kwargs")
    is_bert = name == "jina-bert-flash-implementation"
    pooler = config.get("pooler_type", "cls_pooler" if is_bert else "mean_pooler")  # defaults of the authors' code
    expected = {"pooler_type": "mean_pooler", "proj_type": None, "embed_dim": encoder.hidden_size}
    check_values(HFConfig({**config.values, "pooler_type": pooler}, config.source), expected)
    if is_bert:
        return replace(jina_bert(encoder), weights=GATED_FLASH_NAMES)
    merged = _merged_weights(encoder, config.get("default_lora_task"))
    return replace(jina_v3(encoder), weights=merged, alternative_weights=(FLASH_NAMES,))


def _merged_weights(config: HFConfig, task: str | None) -> WeightTable:
    """Return the names of weights with a LoRA adapter each; that of the default task is merged into them."""
    adapters = stored_adapters_from_config(config)
    if adapters is None or task is None:
        return FLASH_NAMES if adapters is None else FLASH_LORA_NAMES
    if task not in adapters.tasks:
        raise LoadError(
            f"{config.source}: no adapter for default_lora_task={task!r}; found: {', '.join(adapters.tasks)}"
        )
    index, scaling = adapters.tasks.index(task), adapters.scaling

    def merge(original: Array, down: Array, up: Array) -> Array:
        return to_float32(original) + to_float32(up[index]) @ to_float32(down[index]) * scaling

    matrices = {
        name: DerivedWeight((f"{down.rpartition('.0.')[0]}.original", down, up), merge)
        for name, (down, up) in adapters.matrices.items()
    }
    biases = {f"{name}.bias": f"{stored}.bias" for name, stored in FLASH_LAYERS.items()}
    return {**FLASH_NORMS, **matrices, **biases}

"""Weight names of checkpoint formats that several model families share."""

from __future__ import annotations

from cenote.models.weight_table import WeightTable

# Transformers names of BERT-like models with rotary positions, without the MLP
ROTARY_BERT_NAMES: WeightTable = {
    "embed.tokens": "embeddings.word_embeddings",
    "embed.token_types": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "layers.*.mixer.qkv": [f"layers.*.self_attn.{x}_proj" for x in "qkv"],
    "layers.*.mixer.out": "layers.*.self_attn.o_proj",
    "layers.*.mixer_norm": "layers.*.post_attention_layernorm",
    "layers.*.mlp_norm": "layers.*.post_mlp_layernorm",
}

# the same with a gated MLP
GATED_MLP_NAMES: WeightTable = {
    **ROTARY_BERT_NAMES,
    "layers.*.mlp.up": ["layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"],
    "layers.*.mlp.down": "layers.*.mlp.down_proj",
}

# names of the BERT implementation in the flash-attention package
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

# the same where LoRA adapters are stored as a parametrization of every weight except the norms
PARAMETRIZATION = "parametrizations.weight"
FLASH_LORA_NAMES: WeightTable = (
    FLASH_NORMS
    | {
        f"{name}.weight": f"{stored}.{PARAMETRIZATION}.original"
        for name, stored in (FLASH_TABLES | FLASH_LAYERS).items()
    }
    | {f"{name}.bias": f"{stored}.bias" for name, stored in FLASH_LAYERS.items()}
)

"""Weight names of checkpoint formats that several families share."""

from __future__ import annotations

from cenote.models.weight_table import WeightTable

# how Transformers names every rotary kin of BERT, but for the MLP
ROTARY_BERT_NAMES: WeightTable = {
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


FLASH_LORA_NAMES: WeightTable = (
    FLASH_NORMS
    | {f"{ours}.weight": f"{name}.{PARAMETRIZATION}.original" for ours, name in (FLASH_TABLES | FLASH_LAYERS).items()}
    | {f"{ours}.bias": f"{name}.bias" for ours, name in FLASH_LAYERS.items()}
)

"""GPT-2: a decoder with learned positions and transposed (Conv1D) weights."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head
from cenote.models.weight_table import transposed_weight


def gpt2(config: HFConfig) -> Architecture:
    return Architecture(
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.n_embd,
            intermediate_size=config.get("n_inner", 4 * config.n_embd),
            num_layers=config.n_layer,
            num_heads=config.n_head,
            num_learned_positions=config.n_positions,
            causal=config.get("is_causal", True),
            scale=None if config.get("scale_attn_weights", True) else 1.0,
            divides_scale_by_layer=config.get("scale_attn_by_inverse_layer_idx", False),
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            activation=config.get("activation_function", "gelu_new"),
            norm_eps=config.get("layer_norm_epsilon", 1e-5),
        ),
        weights={
            "embed.tokens": "wte",
            "embed.positions": "wpe",
            "layers.*.mixer.qkv": transposed_weight("h.*.attn.c_attn"),
            "layers.*.mixer.out": transposed_weight("h.*.attn.c_proj"),
            "layers.*.mixer_norm": "h.*.ln_1",
            "layers.*.mlp.up": transposed_weight("h.*.mlp.c_fc"),
            "layers.*.mlp.down": transposed_weight("h.*.mlp.c_proj"),
            "layers.*.mlp_norm": "h.*.ln_2",
            "norm": "ln_f",
        },
        prefixes=("transformer.", ""),
        # older checkpoints hold the causal mask
        unused_weights=("*.attn.bias", "*.attn.masked_bias", "lm_head.*", "score.*", "classifier.*"),
        sequence_head=make_linear_head("score", bias=None),
        token_head=make_linear_head("classifier"),
        pairs_with_separator=False,
    )


# keys of CodeSage's config.json -> keys of GPT-2's
CODESAGE_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}


def codesage(config: HFConfig) -> Architecture:
    """CodeSage: a bidirectional GPT-2 that returns the mean as it is; inputs end with the EOS token."""
    values = config.values | {new: getattr(config, old) for old, new in CODESAGE_KEYS.items()}
    base = gpt2(HFConfig(values | {"is_causal": False}, config.source))
    return replace(base, pooling="MEAN", normalize=False, sequence_head=None, token_head=None, appends_eos=True)

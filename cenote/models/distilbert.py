"""DistilBERT: BERT with half of the layers, no token types, and its own config keys and weight names."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig, make_linear_head
from cenote.models.bert import bert, make_masked_head


def distilbert(config: HFConfig) -> Architecture:
    activation = config.get("activation", "gelu")
    bert_values = {
        "hidden_size": config.dim,
        "intermediate_size": config.hidden_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "hidden_act": activation,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 0,
    }
    return replace(
        bert(HFConfig({**config.values, **bert_values}, config.source)),
        weights={
            "embed.tokens": "embeddings.word_embeddings",
            "embed.positions": "embeddings.position_embeddings",
            "embed.norm": "embeddings.LayerNorm",
            "layers.*.mixer.qkv": [f"transformer.layer.*.attention.{x}_lin" for x in "qkv"],
            "layers.*.mixer.out": "transformer.layer.*.attention.out_lin",
            "layers.*.mixer_norm": "transformer.layer.*.sa_layer_norm",
            "layers.*.mlp.up": "transformer.layer.*.ffn.lin1",
            "layers.*.mlp.down": "transformer.layer.*.ffn.lin2",
            "layers.*.mlp_norm": "transformer.layer.*.output_layer_norm",
        },
        prefixes=("distilbert.", "model.", ""),
        unused_weights=("vocab_*", "pre_classifier.*", "classifier.*"),
        sequence_head=Head(
            spec=HeadSpec(pooling="CLS", has_dense=True, dense_activation="relu"),
            weights={"head.dense": "pre_classifier", "head.classifier": "classifier"},
        ),
        token_head=make_linear_head("classifier"),
        masked_head=make_masked_head(
            "vocab_transform",
            "vocab_layer_norm",
            "vocab_projector",
            "vocab_projector.bias",
            activation=activation,
            eps=1e-12,
        ),
    )

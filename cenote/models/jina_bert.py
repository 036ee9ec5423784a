"""JinaBERT, the backbone of jina-embeddings-v2: BERT with ALiBi and a gated MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.layers.spec import BackboneSpec, RelativeBiasSpec
from cenote.models.architecture import Architecture, HFConfig, makes
from cenote.models.bert import bert
from cenote.models.weight_table import DerivedWeight, swap_gate_first

if TYPE_CHECKING:
    from torch import nn

GATE_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}


def jina_bert(config: HFConfig) -> Architecture:
    base, kind = bert(config), config.get("feed_forward_type", "original")
    alibi = config.get("position_embedding_type", "absolute") == "alibi"
    backbone = replace(
        base.backbone,
        num_learned_positions=0 if alibi else base.backbone.num_learned_positions,
        relative_bias=RelativeBiasSpec() if alibi else None,
        is_gated_mlp=kind in GATE_ACTIVATIONS,
        mlp_bias=kind not in GATE_ACTIVATIONS,
        down_bias=True,
        activation=GATE_ACTIVATIONS.get(kind, base.backbone.activation),
    )
    # ForMaskedLM checkpoints are embedding models without an LM head
    architecture = replace(base, pooling="MEAN", backbone=backbone, masked_head=None)
    if kind not in GATE_ACTIVATIONS:
        return architecture
    layer = "encoder.layer.*.mlp"
    architecture = replace(
        architecture,
        weights={
            **base.weights,
            "layers.*.mlp.up": f"{layer}.gated_layers",
            "layers.*.mlp.down": f"{layer}.wo",
            "layers.*.mlp_norm": f"{layer}.layernorm",
        },
    )
    written_by = str(config.get("_name_or_path", "")) + str(config.get("auto_map", ""))
    return _with_qk_norm(architecture) if "qk-post-norm" in written_by else architecture


def _with_qk_norm(base: Architecture) -> Architecture:
    """Return the variant of jina-embeddings-v2-base-code: QK norm and a second norm after attention."""
    layer = "encoder.layer.*"
    return replace(
        base,
        backbone=replace(base.backbone, qk_norm="width"),
        make_mixer=_attention_with_output_norm,
        weights={
            **base.weights,
            "layers.*.mixer.query_norm": f"{layer}.attention.self.layer_norm_q",
            "layers.*.mixer.key_norm": f"{layer}.attention.self.layer_norm_k",
            "layers.*.mixer.out_norm": f"{layer}.attention.output.LayerNorm",
            "layers.*.mixer_norm": f"{layer}.layer_norm_1",
            "layers.*.mlp.up": DerivedWeight((f"{layer}.mlp.up_gated_layer",), swap_gate_first),
            "layers.*.mlp.down": f"{layer}.mlp.down_layer",
            "layers.*.mlp_norm": f"{layer}.layer_norm_2",
        },
    )


@makes("norm after the attention residual")
def _attention_with_output_norm(spec: BackboneSpec, layer: int) -> nn.Module:
    from cenote.layers.attention_variants import AttentionWithOutputNorm

    return AttentionWithOutputNorm(spec, layer)

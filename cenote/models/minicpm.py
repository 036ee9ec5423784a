"""MiniCPM rerankers: Llama with scaled embeddings and residuals, and a score after any of its layers."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import LoadError
from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.llama import llama


def layerwise_minicpm(config: HFConfig) -> Architecture:
    """bge-reranker-v2-minicpm-layerwise; `cutoff_layers` in hf_overrides stops after fewer layers."""
    total, first = config.num_hidden_layers, config.get("start_layer", 8)
    written = config.get("cutoff_layers", total)
    (last,) = written if isinstance(written, list) and len(written) == 1 else (written,)
    if not isinstance(last, int) or not first <= last <= total:
        raise LoadError(f"{config.source}: cutoff_layers is {written!r}; expected one number from {first} to {total}")
    if config.get("head_type", "simple") != "simple" or not config.get("head_multi", True):
        raise LoadError(f"{config.source}: only head_type 'simple' with head_multi true is supported")
    base = llama(HFConfig({**config.values, "num_hidden_layers": last}, config.source))
    head = Head(
        spec=HeadSpec(bias=False, num_labels=1, pooling="LAST"),
        weights={"head.classifier": f"lm_head.{last - first}.linear_head"},
    )
    return replace(
        base,
        backbone=replace(
            base.backbone,
            embed_scale=config.get("scale_emb", 1.0),
            residual_scale=config.get("scale_depth", 1.0) / total**0.5,
        ),
        unused_weights=("lm_head.*", *(f"layers.{layer}.*" for layer in range(last, total))),
        sequence_head=head,
        token_head=None,
        score_template="bge_reranker_v2_minicpm",
    )

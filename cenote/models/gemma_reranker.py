"""bge-reranker-v2.5-gemma2-lightweight: Gemma 2 with a score after any of its layers, without token compression."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import LoadError
from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.gemma import gemma2

COMPRESSION_KEYS = ("compress_ratio", "compress_layers", "compress_layer")
DEFAULT_START = 28  # of the published config class, also the distance between layers with a score


def lightweight_gemma(config: HFConfig) -> Architecture:
    """`cutoff_layers` in hf_overrides stops after fewer layers."""
    total = config.num_hidden_layers
    layers = range(config.get("start_layer", DEFAULT_START), total + 1, config.get("layer_sep", DEFAULT_START))
    written = config.get("cutoff_layers", total)
    (last,) = written if isinstance(written, list) and len(written) == 1 else (written,)
    if not config.get("layer_wise", False):
        raise LoadError(f"{config.source}: layer_wise is false: only models with a score per layer are supported")
    if last not in layers:
        allowed = ", ".join(map(str, layers))
        raise LoadError(f"{config.source}: cutoff_layers is {written!r}; expected one of: {allowed}")
    if config.get("compress_ratio", 1) != 1 or any(key in config for key in COMPRESSION_KEYS[1:]):
        raise LoadError(
            f"{config.source}: tokens are not compressed between layers; remove {', '.join(COMPRESSION_KEYS)} "
            "(scores are those of compress_ratio 1)"
        )
    shortened = {"num_hidden_layers": last}
    if "layer_types" in config:
        shortened["layer_types"] = config.layer_types[:last]
    base = gemma2(HFConfig({**config.values, **shortened}, config.source))
    head = Head(
        # the published code numbers the heads by the requested layers: one layer has the first head
        spec=HeadSpec(
            bias=False, num_labels=1, pooling="LAST", softcap=config.values.get("final_logit_softcapping", 30.0)
        ),
        weights={"head.classifier": "lm_head.0.linear_head"},
    )
    return replace(
        base,
        unused_weights=("lm_head.*", *(f"layers.{layer}.*" for layer in range(last, total))),
        sequence_head=head,
        token_head=None,
        score_template="bge_reranker_v2_5_gemma2",
    )

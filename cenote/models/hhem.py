"""HHEM-2.1-Open: how consistent a text is with another, by a T5 encoder."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.t5 import t5
from cenote.models.weight_table import DerivedWeight

# sizes of google/flan-t5-base, the foundation that HHEM's config.json names
FLAN_T5_BASE = {
    "vocab_size": 32128,
    "d_model": 768,
    "d_ff": 2048,
    "d_kv": 64,
    "num_layers": 12,
    "num_heads": 12,
    "feed_forward_proj": "gated-gelu",
    "n_positions": 512,
}


def hhem(config: HFConfig) -> Architecture:
    """A T5 encoder with two classes on its first token; their difference is the score."""
    classifier = DerivedWeight(("t5.classifier",), lambda stored: stored[1:] - stored[:1])
    head = Head(spec=HeadSpec(pooling="CLS", num_labels=1), weights={"head.classifier": classifier})
    return replace(
        t5(config.with_defaults(**FLAN_T5_BASE)),
        prefixes=("t5.transformer.", "transformer."),
        sequence_head=head,
        score_template="hhem",
        pairs_with_separator=False,
        language_model=None,
    )

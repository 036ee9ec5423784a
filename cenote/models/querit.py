"""Querit-4B: Qwen3 with a classifier of two labels on a [CLS] token at the end of the pair.

The mask of its code is the causal one: a padding on the left, content, and [CLS], which reads all of the content.
"""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.qwen import qwen3
from cenote.models.weight_table import DerivedWeight
from cenote.utils.arrays import Array


def querit(config: HFConfig) -> Architecture:
    head = Head(
        spec=HeadSpec(pooling="LAST", num_labels=1),
        weights={"head.classifier": DerivedWeight(("head",), half_margin)},
        activation="tanh",
    )
    return replace(
        qwen3(config),
        sequence_head=head,
        token_head=None,
        score_template="querit",
        adds_special_tokens=False,
        required_tokens=("[CLS]",),
    )


def half_margin(stored: Array) -> Array:
    """Return one row for two: the score is P(relevant) - P(irrelevant), which is tanh of half the margin of logits."""
    return (stored[1:] - stored[:1]) / 2

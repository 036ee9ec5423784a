"""Causal language models as classifiers: the logits of a few vocabulary tokens become the labels."""

from __future__ import annotations

import numpy as np
import tokenizers

from cenote.errors import LoadError
from cenote.loading.token_labels import TokenLabels
from cenote.loading.weight_loader import WeightLoader
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array


def make_classifier_weight(
    labels: TokenLabels, weight_loader: WeightLoader, table: str, tokenizer: tokenizers.Tokenizer
) -> Array:
    """Return the classifier weight made of LM head rows, [labels, hidden]."""
    head = load_lm_head(weight_loader, table)
    ids = [_find_token_id(labels, token, tokenizer) for token in labels.tokens]
    if beyond := [token for token in ids if not 0 <= token < len(head)]:
        raise LoadError(f"{labels.source}: token id {beyond[0]} is out of range; the LM head has {len(head)} rows")
    rows = to_float32(head[ids]) * np.float32(labels.scale)
    # sigmoid(yes - no) equals the softmax probability of yes
    return rows[1:] - rows[:1] if labels.method == "from_2_way_softmax" else rows


def _find_token_id(labels: TokenLabels, token: str | int, tokenizer: tokenizers.Tokenizer) -> int:
    found = token if isinstance(token, int) else tokenizer.token_to_id(token)
    if found is None:
        raise LoadError(f"{labels.source}: {token!r} is not in the vocabulary")
    return int(found)


def load_lm_head(weight_loader: WeightLoader, table: str) -> Array:
    """Return the LM head, [vocabulary, hidden]; the embedding table if they are tied."""
    names = ("lm_head.weight", "output.weight", f"{table}.weight")
    name = next((name for name in names if weight_loader.has(name)), names[-1])
    return weight_loader.read(name)

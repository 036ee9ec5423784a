"""Causal language models as classifiers: the logits of a few vocabulary tokens become the labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tokenizers

from cenote.errors import LoadError
from cenote.loading.as_array import as_array
from cenote.loading.weight_loader import WeightLoader
from cenote.models.architecture import HFConfig
from cenote.utils.arrays import Array

CONVERSION_METHODS = ("from_2_way_softmax", "no_post_processing")


@dataclass(frozen=True, slots=True)
class TokenLabels:
    """The tokens whose logits are the labels, and how the logits are converted."""

    tokens: tuple[str | int, ...]  # vocabulary entries or token ids
    method: str
    source: str = "classifier_from_token"
    scale: float = 1.0  # of the logits

    @property
    def num_labels(self) -> int:
        return 1 if self.method == "from_2_way_softmax" else len(self.tokens)

    def classifier_weight(self, weight_loader: WeightLoader, table: str, tokenizer: tokenizers.Tokenizer) -> Array:
        """Return the classifier weight made of LM head rows, [labels, hidden]."""
        head = load_lm_head(weight_loader, table)
        ids = [self._token_id(token, tokenizer) for token in self.tokens]
        if beyond := [token for token in ids if not 0 <= token < len(head)]:
            raise LoadError(f"{self.source}: token id {beyond[0]} is out of range; the LM head has {len(head)} rows")
        rows = head[ids].astype(np.float32) * np.float32(self.scale)
        # sigmoid(yes - no) equals the softmax probability of yes
        return rows[1:] - rows[:1] if self.method == "from_2_way_softmax" else rows

    def _token_id(self, token: str | int, tokenizer: tokenizers.Tokenizer) -> int:
        found = token if isinstance(token, int) else tokenizer.token_to_id(token)
        if found is None:
            raise LoadError(f"{self.source}: {token!r} is not in the vocabulary")
        return int(found)


def load_lm_head(weight_loader: WeightLoader, table: str) -> Array:
    """Return the LM head, [vocabulary, hidden]; the embedding table if they are tied."""
    names = ("lm_head.weight", "output.weight", f"{table}.weight")
    return as_array(weight_loader.read(next((name for name in names if weight_loader.has(name)), names[-1])))


def read_token_labels(config: HFConfig) -> TokenLabels | None:
    """Read `classifier_from_token` and `method` from the config; None if not set."""
    tokens = tuple(config.get("classifier_from_token", ()))
    method = config.get("method")
    if config.get("is_original_qwen3_reranker", False):
        method = "from_2_way_softmax"
    if not tokens:
        if method is not None:
            raise LoadError(f"method={method!r} requires classifier_from_token, a list of tokens")
        return None
    if method not in CONVERSION_METHODS:
        raise LoadError(
            f"classifier_from_token requires method, one of: {', '.join(CONVERSION_METHODS)}; got {method!r}"
        )
    if method == "from_2_way_softmax" and len(tokens) != 2:
        raise LoadError(f"from_2_way_softmax compares two tokens, [false, true]; got {len(tokens)}")
    return TokenLabels(tokens, method)

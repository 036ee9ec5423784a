"""Read which vocabulary tokens of a causal language model are the labels of a classifier."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.errors import LoadError
from cenote.models.architecture import HFConfig

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

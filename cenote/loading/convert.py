"""Language models as classifiers: the logits of a few tokens of their vocabulary become the labels."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from torch import Tensor

from cenote.errors import LoadError
from cenote.loading.weights import Filler
from cenote.models.architecture import HFConfig

METHODS = ("from_2_way_softmax", "no_post_processing")


@dataclass(frozen=True, slots=True)
class TokenLabels:
    """Which tokens answer, and how their logits are read."""

    tokens: tuple[str, ...]
    method: str

    @property
    def num_labels(self) -> int:
        return 1 if self.method == "from_2_way_softmax" else len(self.tokens)

    def weight(self, filler: Filler, table: str, tokenizer: tokenizers.Tokenizer) -> Tensor:
        """The rows of the language-model head that belong to the tokens, [labels, hidden]."""
        head = "lm_head.weight" if filler.has("lm_head.weight") else f"{table}.weight"
        rows = filler.read(head)[[self._id(token, tokenizer) for token in self.tokens]].float()
        # sigmoid(yes - no) is the share of yes in a softmax over the two
        return rows[1:] - rows[:1] if self.method == "from_2_way_softmax" else rows

    @staticmethod
    def _id(token: str, tokenizer: tokenizers.Tokenizer) -> int:
        found = tokenizer.token_to_id(token)
        if found is None:
            raise LoadError(f"classifier_from_token names {token!r}, which is no entry of the vocabulary")
        return int(found)


def token_labels(config: HFConfig) -> TokenLabels | None:
    """What `classifier_from_token` and `method` in the config ask for; None when they ask nothing."""
    tokens = tuple(config.get("classifier_from_token", ()))
    method = config.get("method")
    if config.get("is_original_qwen3_reranker", False):
        method = "from_2_way_softmax"
    if not tokens:
        if method is not None:
            raise LoadError(f"method={method!r} needs classifier_from_token, a list of tokens")
        return None
    if method not in METHODS:
        raise LoadError(f"classifier_from_token needs a method: one of {', '.join(METHODS)}; got {method!r}")
    if method == "from_2_way_softmax" and len(tokens) != 2:
        raise LoadError(f"from_2_way_softmax compares two tokens, [false, true]; got {len(tokens)}")
    return TokenLabels(tokens, method)

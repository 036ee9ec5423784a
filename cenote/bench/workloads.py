"""Texts to measure with: the same ones for every engine, made from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts and what is known of their lengths, in tokens with special ones."""

    texts: list[str]
    lengths: list[int]

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    def describe(self) -> str:
        quarters = np.percentile(self.lengths, (5, 50, 95)).astype(int)
        mean = self.num_tokens / len(self.lengths)
        return (
            f"{len(self.texts)} texts, {self.num_tokens} tokens: mean {mean:.0f}, "
            f"5/50/95 % at {quarters[0]}/{quarters[1]}/{quarters[2]}"
        )


def log_normal(
    tokenizer: tokenizers.Tokenizer,
    count: int,
    *,
    mean: float = 50,
    sigma: float = 0.8,
    longest: int = 256,
    seed: int = 0,
) -> Workload:
    """Texts of common words whose lengths in tokens are spread as those of real queries and passages are."""
    random = np.random.default_rng(seed)
    # the mean of a log-normal is exp(mu + sigma^2 / 2)
    lengths = random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count).clip(3, longest).astype(int)
    words = common_words(tokenizer)
    texts = [" ".join(random.choice(words, length - 2)) for length in lengths]
    return Workload(texts, [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)])


def common_words(tokenizer: tokenizers.Tokenizer) -> Sequence[str]:
    """Words that are one token each, so that a text's length can be chosen."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    words = sorted(token.lstrip("▁Ġ") for token in vocabulary)
    return [word for word in dict.fromkeys(words) if len(word) > 2 and word.isascii() and word.isalpha()]

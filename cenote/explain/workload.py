"""The texts that a model is measured with: all of one length, or of lengths spread as those of real ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cenote.bench.workloads import common_words
from cenote.engine.engine import PoolingEngine

# of the mixed workload, in tokens
MEAN, SIGMA, LONGEST = 50, 0.8, 256
# of a mixed workload, looked at by parts
BATCHES = 3


class Words:
    """Never the same text twice, or an answer might be known already."""

    def __init__(self, engine: PoolingEngine) -> None:
        self.special = engine.tokenizer.single.num_tokens
        self.random = np.random.default_rng(0)
        self.known = np.array(common_words(engine.tokenizer.raw))

    def texts(self, lengths: Sequence[int]) -> list[str]:
        """Texts of so many tokens each, where every word is one."""
        return [" ".join(self.random.choice(self.known, max(1, length - self.special))) for length in lengths]


class Workload:
    """`length` tokens in every text, or lengths that are spread log-normally."""

    def __init__(self, words: Words, length: int | None, longest: int) -> None:
        self.words = words
        self.length = length
        self.longest = min(LONGEST, longest)
        self.name = f"{length} tokens" if length else f"mixed, mean {MEAN}"
        self.mean_length = length or min(MEAN, self.longest)
        self.num_batches = 1 if length else BATCHES  # at most

    def lengths(self, count: int) -> list[int]:
        if self.length:
            return [self.length] * count
        # the mean of a log-normal is exp(mu + sigma^2 / 2)
        drawn = self.words.random.lognormal(np.log(self.mean_length) - SIGMA**2 / 2, SIGMA, count)
        least = self.words.special + 1
        return [int(length) for length in drawn.clip(least, max(least, self.longest))]

    def texts(self, count: int) -> list[str]:
        return self.words.texts(self.lengths(count))

    def batches(self, num_tokens: int, max_sequences: int) -> list[list[int]]:
        """The lengths of sequences that run together, neighbours in length as the scheduler puts them."""
        if self.length:
            return [[self.length] * max(1, min(num_tokens // self.length, max_sequences))]
        every = fitting(sorted(self.lengths(16 * num_tokens // self.mean_length)), num_tokens, max_sequences)
        every = every[:-1] or every  # the last holds what was left
        # evenly from short to long
        return [every[round(at)] for at in np.linspace(0, len(every) - 1, min(self.num_batches, len(every)))]


def fitting(lengths: Sequence[int], num_tokens: int, max_sequences: int) -> list[list[int]]:
    """Lengths cut into batches, in their order."""
    batches: list[list[int]] = [[]]
    tokens = 0
    for length in lengths:
        if batches[-1] and (tokens + length > num_tokens or len(batches[-1]) == max_sequences):
            batches.append([])
            tokens = 0
        batches[-1].append(length)
        tokens += length
    return batches

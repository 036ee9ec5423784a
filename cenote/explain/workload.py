"""The texts that a model is measured with: all of one length, or of lengths spread as those of real ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cenote.bench.workloads import single_token_words
from cenote.engine.engine import PoolingEngine

# of the mixed workload, in tokens
MIXED_MEAN, MIXED_SIGMA, MIXED_MAX_LENGTH = 50, 0.8, 256
# of a mixed workload, looked at by parts
NUM_MIXED_BATCHES = 3


class TextGenerator:
    """Never the same text twice, or an answer might be known already."""

    def __init__(self, engine: PoolingEngine) -> None:
        self.num_special_tokens = engine.tokenizer.single_template.num_tokens
        self.random = np.random.default_rng(0)
        self.words = np.array(single_token_words(engine.tokenizer.raw))

    def make_texts(self, lengths: Sequence[int]) -> list[str]:
        """Texts of so many tokens each, where every word is one."""
        return [
            " ".join(self.random.choice(self.words, max(1, length - self.num_special_tokens))) for length in lengths
        ]


class ProbeWorkload:
    """`length` tokens in every text, or lengths that are spread log-normally."""

    def __init__(self, words: TextGenerator, length: int | None, longest: int) -> None:
        self.text_generator = words
        self.length = length
        self.max_length = min(MIXED_MAX_LENGTH, longest)
        self.name = f"{length} tokens" if length else f"mixed, mean {MIXED_MEAN}"
        self.mean_length = length or min(MIXED_MEAN, self.max_length)
        self.num_batches = 1 if length else NUM_MIXED_BATCHES  # at most

    def draw_lengths(self, count: int) -> list[int]:
        if self.length:
            return [self.length] * count
        # the mean of a log-normal is exp(mu + sigma^2 / 2)
        drawn = self.text_generator.random.lognormal(np.log(self.mean_length) - MIXED_SIGMA**2 / 2, MIXED_SIGMA, count)
        least = self.text_generator.num_special_tokens + 1
        return [int(length) for length in drawn.clip(least, max(least, self.max_length))]

    def make_texts(self, count: int) -> list[str]:
        return self.text_generator.make_texts(self.draw_lengths(count))

    def make_batches(self, num_tokens: int, max_sequences: int) -> list[list[int]]:
        """The lengths of sequences that run together, neighbours in length as the scheduler puts them."""
        if self.length:
            return [[self.length] * max(1, min(num_tokens // self.length, max_sequences))]
        every = split_into_batches(
            sorted(self.draw_lengths(16 * num_tokens // self.mean_length)), num_tokens, max_sequences
        )
        every = every[:-1] or every  # the last holds what was left
        # evenly from short to long
        return [every[round(at)] for at in np.linspace(0, len(every) - 1, min(self.num_batches, len(every)))]


def split_into_batches(lengths: Sequence[int], num_tokens: int, max_sequences: int) -> list[list[int]]:
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

"""Synthetic texts and batches for measurements: of one length, or of log-normal lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cenote.bench.workloads import single_token_words
from cenote.engine.engine import PoolingEngine
from cenote.packed_batch import PackedBatch, pack_sequences

# mean length of the mixed workload in tokens
MIXED_MEAN, MIXED_SIGMA, MIXED_MAX_LENGTH = 50, 0.8, 256
# batches of the mixed workload that are measured by part
NUM_MIXED_BATCHES = 3


class TextGenerator:
    """Generates texts that never repeat, so that no result is deduplicated or cached."""

    def __init__(self, engine: PoolingEngine) -> None:
        self.num_special_tokens = engine.tokenizer.single_template.num_tokens
        self.random = np.random.default_rng(0)
        self.words = np.array(single_token_words(engine.tokenizer.raw))

    def make_texts(self, lengths: Sequence[int]) -> list[str]:
        """Return texts with that many tokens each; every word is one token."""
        return [
            " ".join(self.random.choice(self.words, max(1, length - self.num_special_tokens))) for length in lengths
        ]


class ProbeWorkload:
    """Texts of `length` tokens, or of log-normal lengths if it is None."""

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
        """Return the lengths of each batch, sorted by length as the scheduler does."""
        if self.length:
            return [[self.length] * max(1, min(num_tokens // self.length, max_sequences))]
        every = split_into_batches(
            sorted(self.draw_lengths(16 * num_tokens // self.mean_length)), num_tokens, max_sequences
        )
        every = every[:-1] or every  # the last batch may be incomplete
        # evenly from short to long
        return [every[round(at)] for at in np.linspace(0, len(every) - 1, min(self.num_batches, len(every)))]


def split_into_batches(lengths: Sequence[int], num_tokens: int, max_sequences: int) -> list[list[int]]:
    """Split lengths into batches by the token budget."""
    batches: list[list[int]] = [[]]
    tokens = 0
    for length in lengths:
        if batches[-1] and (tokens + length > num_tokens or len(batches[-1]) == max_sequences):
            batches.append([])
            tokens = 0
        batches[-1].append(length)
        tokens += length
    return batches


def make_random_batch(lengths: Sequence[int], vocabulary: int, device: torch.device) -> PackedBatch:
    """Return a batch of sequences with these lengths and arbitrary tokens."""
    tokens = torch.randint(0, vocabulary, (sum(lengths),))
    packed = pack_sequences([part.tolist() for part in torch.split(tokens, list(lengths))])
    if device.type == "cpu":
        return packed
    token_ids, positions, offsets = (x.to(device) for x in (packed.token_ids, packed.positions, packed.cu_seqlens))
    return replace(packed, token_ids=token_ids, positions=positions, cu_seqlens=offsets)

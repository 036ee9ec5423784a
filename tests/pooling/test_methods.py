"""Pooling of packed batches equals pooling every sequence by itself, and what Sentence Transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from torch.testing import assert_close

from cenote.packed_batch import PackedBatch, pack
from cenote.pooling.methods import METHODS

LENGTHS = [5, 1, 3, 3, 9, 1, 5]
SKIPS = [2, 0, 2, 0, 8, 0, 4]  # as many leading tokens as a prompt may take: at least one token stays

# of one sequence, [tokens, hidden] -> [hidden], with the number of leading tokens that are left out
PLAIN: dict[str, Callable[[Tensor, int], Tensor]] = {
    "CLS": lambda rows, skip: rows[skip],
    "LAST": lambda rows, skip: rows[-1],
    "MEAN": lambda rows, skip: rows[skip:].mean(0),
    "MAX": lambda rows, skip: rows[skip:].amax(0),
    "MEAN_SQRT_LEN": lambda rows, skip: rows[skip:].sum(0) / (len(rows) - skip) ** 0.5,
    "WEIGHTEDMEAN": lambda rows, skip: (
        torch.stack([row * place for place, row in enumerate(rows, 1) if place > skip]).sum(0)
        / sum(range(skip + 1, len(rows) + 1))
    ),
}
THEIR_NAMES = {
    "CLS": "cls",
    "LAST": "lasttoken",
    "MEAN": "mean",
    "MAX": "max",
    "MEAN_SQRT_LEN": "mean_sqrt_len_tokens",
    "WEIGHTEDMEAN": "weightedmean",
}


def states(hidden_size: int = 6) -> tuple[Tensor, PackedBatch]:
    batch = pack([[7] * length for length in LENGTHS])
    # all negative: a maximum that forgets its start shows
    return torch.randn(batch.num_tokens, hidden_size, generator=torch.Generator().manual_seed(1)) - 3, batch


def test_every_method_has_a_row_here() -> None:
    assert set(PLAIN) == set(METHODS) == set(THEIR_NAMES)


@pytest.mark.parametrize("name", PLAIN)
def test_a_packed_batch_is_pooled_sequence_by_sequence(name: str) -> None:
    hidden, batch = states()

    pooled = METHODS[name](hidden, batch)

    assert_close(pooled, torch.stack([PLAIN[name](rows, 0) for rows in hidden.split(LENGTHS)]))


@pytest.mark.parametrize("name", PLAIN)
def test_a_prompt_is_left_out_where_the_batch_says_so(name: str) -> None:
    hidden, batch = states()

    pooled = METHODS[name](hidden, replace(batch, skip=torch.tensor(SKIPS)))

    expected = [PLAIN[name](rows, skip) for rows, skip in zip(hidden.split(LENGTHS), SKIPS, strict=True)]
    assert_close(pooled, torch.stack(expected))


@pytest.mark.parametrize("prompt_length", [None, 2])
@pytest.mark.parametrize("name", PLAIN)
def test_a_method_matches_sentence_transformers(name: str, prompt_length: int | None) -> None:
    hidden, batch = states()
    lengths = LENGTHS
    if prompt_length is not None:  # every text has one token of its own at least
        lengths = [length + prompt_length for length in LENGTHS]
        batch = replace(pack([[7] * length for length in lengths]), skip=torch.full((len(lengths),), prompt_length))
        hidden = torch.randn(batch.num_tokens, 6, generator=torch.Generator().manual_seed(2)) - 3
    padded = torch.nn.utils.rnn.pad_sequence(hidden.split(lengths), batch_first=True)
    mask = (torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None]).long()
    theirs = Pooling(6, THEIR_NAMES[name], include_prompt=prompt_length is None)
    features = {"token_embeddings": padded, "attention_mask": mask}

    expected = theirs(features | ({} if prompt_length is None else {"prompt_length": prompt_length}))

    assert_close(METHODS[name](hidden, batch), expected["sentence_embedding"])


@pytest.mark.parametrize("name", ["MEAN", "MEAN_SQRT_LEN", "WEIGHTEDMEAN"])
def test_sums_are_taken_in_float32(name: str) -> None:
    batch = pack([[7] * 4000])
    hidden = torch.randn(4000, 8, generator=torch.Generator().manual_seed(3)) + 1

    pooled = METHODS[name](hidden.bfloat16(), batch)

    assert pooled.dtype == torch.float32
    assert_close(pooled[0], PLAIN[name](hidden.bfloat16().double(), 0).float(), rtol=1e-4, atol=1e-4)

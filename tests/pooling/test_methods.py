"""Pooling methods: a packed batch gives the same results as single sequences and as Sentence Transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from torch.testing import assert_close

from cenote.packed_batch import PackedBatch, pack_sequences
from cenote.pooling.methods import POOLING_METHODS
from cenote.pooling.torch_ops import TorchOps

OPS = TorchOps()
LENGTHS = [5, 1, 3, 3, 9, 1, 5]
NUM_UNPOOLED = [2, 0, 2, 0, 8, 0, 4]  # leading tokens of a prompt; at least one token of each sequence is pooled

# of one sequence, [tokens, hidden] -> [hidden], with the number of leading tokens that are not pooled
REFERENCE_METHODS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "CLS": lambda rows, skip: rows[skip],
    "LAST": lambda rows, skip: rows[-1],
    "LAST_AND_PROMPT_END": lambda rows, skip: torch.cat([rows[-1], rows[skip]]),
    "MEAN": lambda rows, skip: rows[skip:].mean(0),
    "IMAGE_MEAN": lambda rows, skip: rows[skip:].mean(0),  # of texts
    "TEXT_MEAN": lambda rows, skip: rows[skip:].mean(0),  # of texts
    "MAX": lambda rows, skip: rows[skip:].amax(0),
    "MEAN_SQRT_LEN": lambda rows, skip: rows[skip:].sum(0) / (len(rows) - skip) ** 0.5,
    "WEIGHTEDMEAN": lambda rows, skip: (
        torch.stack([row * weight for weight, row in enumerate(rows, 1) if weight > skip]).sum(0)
        / sum(range(skip + 1, len(rows) + 1))
    ),
}
SENTENCE_TRANSFORMERS_NAMES = {
    "CLS": "cls",
    "LAST": "lasttoken",
    "MEAN": "mean",
    "IMAGE_MEAN": "mean",
    "TEXT_MEAN": "mean",
    "MAX": "max",
    "MEAN_SQRT_LEN": "mean_sqrt_len_tokens",
    "WEIGHTEDMEAN": "weightedmean",
}


def make_states(hidden_size: int = 6) -> tuple[Tensor, PackedBatch]:
    batch = pack_sequences([[7] * length for length in LENGTHS])
    # all negative: a maximum that is initialised with 0 would show
    return torch.randn(batch.num_tokens, hidden_size, generator=torch.Generator().manual_seed(1)) - 3, batch


def test_every_pooling_method_has_a_reference() -> None:
    assert set(REFERENCE_METHODS) == set(POOLING_METHODS) == {*SENTENCE_TRANSFORMERS_NAMES, "LAST_AND_PROMPT_END"}


@pytest.mark.parametrize("name", REFERENCE_METHODS)
def test_a_packed_batch_is_pooled_sequence_by_sequence(name: str) -> None:
    hidden, batch = make_states()

    pooled = POOLING_METHODS[name](OPS, hidden, batch)

    assert_close(pooled, torch.stack([REFERENCE_METHODS[name](rows, 0) for rows in hidden.split(LENGTHS)]))


@pytest.mark.parametrize("name", REFERENCE_METHODS)
def test_unpooled_prompt_tokens_are_excluded(name: str) -> None:
    hidden, batch = make_states()

    pooled = POOLING_METHODS[name](OPS, hidden, replace(batch, num_unpooled=torch.tensor(NUM_UNPOOLED)))

    expected = [
        REFERENCE_METHODS[name](rows, skip) for rows, skip in zip(hidden.split(LENGTHS), NUM_UNPOOLED, strict=True)
    ]
    assert_close(pooled, torch.stack(expected))


@pytest.mark.parametrize("prompt_length", [None, 2])
@pytest.mark.parametrize("name", SENTENCE_TRANSFORMERS_NAMES)
def test_a_method_matches_sentence_transformers(name: str, prompt_length: int | None) -> None:
    hidden, batch = make_states()
    lengths = LENGTHS
    if prompt_length is not None:  # every text has at least one token after the prompt
        lengths = [length + prompt_length for length in LENGTHS]
        batch = replace(
            pack_sequences([[7] * length for length in lengths]),
            num_unpooled=torch.full((len(lengths),), prompt_length),
        )
        hidden = torch.randn(batch.num_tokens, 6, generator=torch.Generator().manual_seed(2)) - 3
    padded = torch.nn.utils.rnn.pad_sequence(hidden.split(lengths), batch_first=True)
    mask = (torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None]).long()
    theirs = Pooling(6, SENTENCE_TRANSFORMERS_NAMES[name], include_prompt=prompt_length is None)
    features = {"token_embeddings": padded, "attention_mask": mask}

    expected = theirs(features | ({} if prompt_length is None else {"prompt_length": prompt_length}))

    assert_close(POOLING_METHODS[name](OPS, hidden, batch), expected["sentence_embedding"])


@pytest.mark.parametrize("name", ["MEAN", "MEAN_SQRT_LEN", "WEIGHTEDMEAN"])
def test_sums_are_taken_in_float32(name: str) -> None:
    batch = pack_sequences([[7] * 4000])
    hidden = torch.randn(4000, 8, generator=torch.Generator().manual_seed(3)) + 1

    pooled = POOLING_METHODS[name](OPS, hidden.bfloat16(), batch)

    assert pooled.dtype == torch.float32
    assert_close(pooled[0], REFERENCE_METHODS[name](hidden.bfloat16().double(), 0).float(), rtol=1e-4, atol=1e-4)

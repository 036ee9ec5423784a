"""How many tokens a batch holds."""

from __future__ import annotations

import torch
from torch import nn

from cenote.engine.execution.token_budget import bytes_per_token, fitting, token_budget
from cenote.layers.spec import BackboneSpec

BERT = BackboneSpec(vocab_size=9, hidden_size=768, intermediate_size=3072, num_layers=12, num_heads=12)
WIDE = BackboneSpec(vocab_size=9, hidden_size=4096, intermediate_size=12288, num_layers=36, num_heads=32, gated=True)
GIB = 2**30


def test_a_free_gpu_gets_the_batches_that_fill_it() -> None:
    assert fitting(BERT, 2, 100 * GIB) == 131072
    assert fitting(WIDE, 2, 100 * GIB) == 32768


def test_a_batch_takes_at_most_half_of_what_is_free() -> None:
    tokens = fitting(BERT, 2, GIB)

    assert 1024 <= tokens < 131072
    assert tokens * bytes_per_token(BERT, 2) <= GIB / 2


def test_layers_that_hold_more_than_others_get_fewer_tokens() -> None:
    assert fitting(BERT, 2, GIB, bytes_per_token(BERT, 2)) * 2 <= fitting(BERT, 2, GIB) + 1024


def test_however_little_is_free_something_runs() -> None:
    assert fitting(WIDE, 4, 0) == 1024


def test_a_cpu_is_asked_nothing() -> None:
    assert token_budget(nn.Linear(1, 1), torch.device("cpu")) == 4096

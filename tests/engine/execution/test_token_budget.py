"""The default token budget of a batch."""

from __future__ import annotations

from torch import nn

from cenote.config.device import Device
from cenote.engine.execution.token_budget import compute_token_budget, estimate_bytes_per_token, max_tokens_in_memory
from cenote.layers.spec import BackboneSpec

BERT = BackboneSpec(vocab_size=9, hidden_size=768, intermediate_size=3072, num_layers=12, num_heads=12)
WIDE = BackboneSpec(
    vocab_size=9, hidden_size=4096, intermediate_size=12288, num_layers=36, num_heads=32, is_gated_mlp=True
)
GIB = 2**30


def test_a_gpu_with_free_memory_gets_the_full_token_budget() -> None:
    assert max_tokens_in_memory(BERT, 2, 100 * GIB) == 131072
    assert max_tokens_in_memory(WIDE, 2, 100 * GIB) == 32768


def test_a_batch_takes_at_most_half_of_the_free_memory() -> None:
    tokens = max_tokens_in_memory(BERT, 2, GIB)

    assert 1024 <= tokens < 131072
    assert tokens * estimate_bytes_per_token(BERT, 2) <= GIB / 2


def test_layers_with_extra_memory_per_token_reduce_the_budget() -> None:
    assert (
        max_tokens_in_memory(BERT, 2, GIB, estimate_bytes_per_token(BERT, 2)) * 2
        <= max_tokens_in_memory(BERT, 2, GIB) + 1024
    )


def test_the_budget_has_a_minimum() -> None:
    assert max_tokens_in_memory(WIDE, 4, 0) == 1024


def test_a_cpu_gets_the_fixed_budget() -> None:
    assert compute_token_budget(nn.Linear(1, 1), Device("cpu")) == 4096

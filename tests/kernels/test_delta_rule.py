"""The chunked gated delta rule over packed sequences equals its definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus
from torch.testing import assert_close

from cenote.kernels import delta_rule as module
from cenote.kernels.delta_rule import DeltaRuleInputs, gated_delta_rule
from cenote.packed_batch import PackedBatch, pack_sequences

CHUNK = module.CHUNK_SIZE["cpu"]
# single tokens, tails of every width with and without full chunks, full chunks only, several of one length
LENGTHS = [7, 1, CHUNK, 2 * CHUNK + 2, 3, 3 * CHUNK + 8, CHUNK - 1, 2 * CHUNK, CHUNK + 20, 16, 17, 3]


def inputs(lengths: list[int]) -> tuple[DeltaRuleInputs, PackedBatch]:
    generator, tokens = torch.Generator().manual_seed(0), sum(lengths)
    query, key = (normalize(torch.randn(tokens, 2, 5, generator=generator), dim=-1) for _ in range(2))
    value = torch.randn(tokens, 2, 3, 4, generator=generator)
    log_decay, beta = (torch.randn(tokens, 2, 3, generator=generator) for _ in range(2))
    rule = DeltaRuleInputs(query, key, value, -0.1 * softplus(log_decay), beta.sigmoid())
    return rule, pack_sequences([[0] * length for length in lengths])


def expected_output(rule: DeltaRuleInputs, lengths: list[int]) -> Tensor:
    """Compute token by token, in float64."""
    query, key, value, log_decay, beta = (part.double() for part in rule)
    out, row = [], 0
    for length in lengths:
        state = torch.zeros(*value.shape[1:3], key.shape[-1], value.shape[-1], dtype=torch.float64)
        for _ in range(length):
            state = state * log_decay[row].exp()[..., None, None]
            stored = torch.einsum("hk,hgkv->hgv", key[row], state)
            update = beta[row][..., None] * (value[row] - stored)
            state = state + torch.einsum("hk,hgv->hgkv", key[row], update)
            out.append(torch.einsum("hk,hgkv->hgv", query[row], state))
            row += 1
    return torch.stack(out)


@pytest.mark.parametrize("lengths", [LENGTHS, [5, 9], [CHUNK, CHUNK], [300]])
def test_every_token_equals_the_definition(lengths: list[int]) -> None:
    rule, batch = inputs(lengths)

    assert_close(gated_delta_rule(rule, batch).double(), expected_output(rule, lengths), atol=1e-5, rtol=1e-5)


def test_a_small_token_limit_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, batch = inputs(LENGTHS)
    unlimited = gated_delta_rule(rule, batch)

    monkeypatch.setitem(module.MAX_TOKENS, "cpu", 2 * CHUNK)
    limited = gated_delta_rule(rule, batch)

    assert_close(limited, unlimited, atol=1e-6, rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same() -> None:
    rule, batch = inputs(LENGTHS)
    cuda_batch = replace(
        batch, **{name: getattr(batch, name).cuda() for name in ("token_ids", "positions", "cu_seqlens")}
    )

    ours = gated_delta_rule(DeltaRuleInputs(*(part.cuda() for part in rule)), cuda_batch)

    assert_close(ours.cpu().double(), expected_output(rule, LENGTHS), atol=1e-5, rtol=1e-5)


def test_repeated_tokens_lose_no_precision() -> None:
    rule, batch = inputs(LENGTHS)
    rule = rule._replace(
        key=rule.key[:1].expand_as(rule.key),
        log_decay=torch.zeros_like(rule.log_decay),
        beta=torch.full_like(rule.beta, 0.999),
    )

    assert_close(gated_delta_rule(rule, batch).double(), expected_output(rule, LENGTHS), atol=1e-5, rtol=1e-5)


def test_a_state_that_decays_at_once_does_not_overflow() -> None:
    rule, batch = inputs(LENGTHS)
    rule = rule._replace(log_decay=rule.log_decay * 1e4)

    assert_close(gated_delta_rule(rule, batch).double(), expected_output(rule, LENGTHS), atol=1e-5, rtol=1e-5)


def test_nan_stays_in_its_own_sequence() -> None:
    rule, batch = inputs(LENGTHS)
    expected = gated_delta_rule(rule, batch)
    rule.value[0] = torch.nan

    ours = gated_delta_rule(rule, batch)

    assert ours[: LENGTHS[0]].isnan().all()
    assert_close(ours[LENGTHS[0] :], expected[LENGTHS[0] :])

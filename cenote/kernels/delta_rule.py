"""The gated delta rule over a packed batch, in chunks: sequences run in parallel, and only the last chunk is padded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch

Array: TypeAlias = "np.ndarray[Any, Any]"

# tokens of a sequence that are computed at once; larger on a GPU, where the number of steps dominates the time
CHUNK_SIZE = {"cpu": 64, "cuda": 128}
# the tokens after the last full chunk are padded to the smallest of these sizes that holds them
TAIL_SIZES = (16, 32, 64, 128)
# maximum number of tokens whose chunks are in memory at once
MAX_TOKENS = {"cpu": 4096, "cuda": 16384}


class DeltaRuleInputs(NamedTuple):
    """Per token, starting from S = 0: S = decay * S; S = S + key (beta * (value - key S))'; out = query S."""

    query: Tensor  # [tokens, key heads, k]
    key: Tensor  # [tokens, key heads, k]
    value: Tensor  # [tokens, key heads, group, v]; `group` value heads share a key head
    log_decay: Tensor  # [tokens, key heads, group]
    beta: Tensor  # [tokens, key heads, group]


class ChunkRounds(NamedTuple):
    """Rounds of full chunks: each takes the next chunk of every sequence that has one left, longest sequences first."""

    rows: Tensor  # [full chunks, chunk size], in order of rounds
    num_active: tuple[int, ...]  # number of chunks per round


class TailChunks(NamedTuple):
    """The tokens after the last full chunk of some sequences, padded to equal width by repeating the last token."""

    rows: Tensor  # [tails, width]
    valid_rows: Tensor  # [tokens], indices of the flattened rows that are not padding
    token_indices: Tensor  # [tokens], the token of each valid row
    state_indices: Tensor | None  # [tails], the state each continues from; None: they are whole sequences


class ChunkPlan(NamedTuple):
    """Chunks of some sequences of a batch, ordered by decreasing number of full chunks."""

    rounds: tuple[ChunkRounds, ...]
    tails: tuple[TailChunks, ...]


class ChunkTerms(NamedTuple):
    """Terms within each chunk, computed as if its initial state were 0: [chunks, key heads, group, width, ...]"""

    query: Tensor  # [..., k], broadcast over the group
    key: Tensor  # [..., k], broadcast over the group
    beta: Tensor  # [..., 1]
    cum_log_decay: Tensor  # [..., 1], logarithm of the decay since the start of the chunk
    inverse: Tensor  # [..., width], of the unit lower triangular system that relates updates of the same chunk
    updates: Tensor  # [..., v]
    attention: Tensor  # [..., width], decayed query-key products, lower triangular


class StateTerms(NamedTuple):
    """Terms that relate a chunk to the state before and after it: [chunks * heads, width, ...]"""

    updates: Tensor  # [..., v], for an initial state of 0
    state_keys: Tensor  # [..., k]; their product with the initial state is subtracted from the updates
    attention: Tensor  # [..., width]
    query: Tensor  # [..., k], times the decay since the initial state
    key: Tensor  # [..., k], times the decay until the end of the chunk
    decay: Tensor  # [chunks * heads, 1, 1], over the whole chunk


def gated_delta_rule(inputs: DeltaRuleInputs, batch: PackedBatch) -> Tensor:
    """Return the outputs [tokens, key heads, group, v]; all tensors are float32."""
    out = torch.empty_like(inputs.value)
    for plan in _make_plans(batch.seq_lens_cpu, batch.device, MAX_TOKENS[batch.device.type]):
        states = _run_full_chunks(inputs, plan, out) if plan.rounds else None
        for tails in plan.tails:
            chunks = _chunk_terms(inputs, tails.rows)
            if states is None or tails.state_indices is None:
                outputs = (chunks.attention @ chunks.updates).flatten(0, 2)
            else:
                terms = _state_terms(chunks)
                state = states.view(-1, _num_heads(inputs), *states.shape[1:])[tails.state_indices].flatten(0, 1)
                outputs = _compute_outputs(terms, _compute_updates(terms, state), state)
            out[tails.token_indices] = _to_token_order(outputs, inputs).flatten(0, 1)[tails.valid_rows]
    return out


def _run_full_chunks(inputs: DeltaRuleInputs, plan: ChunkPlan, out: Tensor) -> Tensor:
    """Write the outputs of all full chunks to `out`; return the final states, [sequences * heads, k, v]."""
    heads = _num_heads(inputs)
    state = inputs.value.new_zeros(plan.rounds[0].num_active[0] * heads, inputs.key.shape[-1], inputs.value.shape[-1])
    for rows, rounds in plan.rounds:
        all_terms, done = _state_terms(_chunk_terms(inputs, rows)), 0
        outputs = []
        for active in rounds:
            terms = StateTerms(*(term[done * heads : (done + active) * heads] for term in all_terms))
            current = state[: active * heads]
            updates = _compute_updates(terms, current)
            outputs.append(_compute_outputs(terms, updates, current))
            current.mul_(terms.decay).baddbmm_(terms.key.mT, updates)
            done += active
        out[rows] = _to_token_order(torch.cat(outputs), inputs)
    return state


def _compute_updates(terms: StateTerms, state: Tensor) -> Tensor:
    return torch.baddbmm(terms.updates, terms.state_keys, state, alpha=-1)


def _compute_outputs(terms: StateTerms, updates: Tensor, state: Tensor) -> Tensor:
    return torch.baddbmm(terms.attention @ updates, terms.query, state)


def _chunk_terms(inputs: DeltaRuleInputs, rows: Tensor) -> ChunkTerms:
    query, key = (part[rows].transpose(1, 2)[:, :, None].contiguous() for part in (inputs.query, inputs.key))
    value = inputs.value[rows].permute(0, 2, 3, 1, 4).contiguous()
    beta = inputs.beta[rows].permute(0, 2, 3, 1)[..., None].contiguous()
    cum_log_decay = inputs.log_decay[rows].permute(0, 2, 3, 1).cumsum(-1)[..., None]
    # lower triangular: above the diagonal the exponent is positive and could overflow
    decay = (cum_log_decay - cum_log_decay.mT).tril_().exp_()
    # forward substitution: inverting by a product of powers loses all precision when tokens repeat
    system = (key @ key.mT) * decay * beta
    identity = torch.eye(rows.shape[1], device=rows.device).expand_as(system)
    inverse = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)
    attention = (query @ key.mT * decay).tril_()
    return ChunkTerms(query, key, beta, cum_log_decay, inverse, inverse @ (value * beta), attention)


def _state_terms(chunks: ChunkTerms) -> StateTerms:
    decay, decay_to_end = chunks.cum_log_decay.exp(), (chunks.cum_log_decay[..., -1:, :] - chunks.cum_log_decay).exp()
    parts = (
        chunks.updates,
        chunks.inverse @ (chunks.key * (decay * chunks.beta)),
        chunks.attention,
        chunks.query * decay,
        chunks.key * decay_to_end,
        decay[..., -1:, :],
    )
    return StateTerms(*(part.flatten(0, 2) for part in parts))


def _num_heads(inputs: DeltaRuleInputs) -> int:
    _, key_heads, group, _ = inputs.value.shape
    return key_heads * group


def _to_token_order(x: Tensor, inputs: DeltaRuleInputs) -> Tensor:
    """[chunks * heads, width, v] -> [chunks, width, key heads, group, v]"""
    return x.reshape(-1, *inputs.value.shape[1:3], *x.shape[1:]).permute(0, 3, 1, 2, 4)


@lru_cache(maxsize=8)  # all layers of a model use the same plans
def _make_plans(lengths: tuple[int, ...], device: torch.device, max_tokens: int) -> tuple[ChunkPlan, ...]:
    """Group adjacent sequences up to `max_tokens` tokens and plan the chunks of each group."""
    firsts, tokens = [0], 0
    for index, length in enumerate(lengths):
        if tokens and tokens + length > max_tokens:
            firsts.append(index)
            tokens = 0
        tokens += length
    starts = np.cumsum((0, *lengths))
    groups = zip(firsts, (*firsts[1:], len(lengths)), strict=True)
    return tuple(_make_plan(starts[first:end], np.array(lengths[first:end]), device) for first, end in groups)


def _make_plan(starts: Array, lengths: Array, device: torch.device) -> ChunkPlan:
    chunk = CHUNK_SIZE[device.type]
    num_chunks, rest = np.divmod(lengths, chunk)
    order = np.argsort(-num_chunks, kind="stable")
    state_indices = np.argsort(order)
    tails = []
    for previous_width, width in pairwise((0, *TAIL_SIZES)):
        for continued in (False, True):
            seqs = np.flatnonzero((rest > previous_width) & (rest <= width) & ((num_chunks > 0) == continued))
            if len(seqs):
                first = starts[seqs] + num_chunks[seqs] * chunk
                states = state_indices[seqs] if continued else None
                tails.append(_make_tails(first, rest[seqs], width, states, device))
    return ChunkPlan(tuple(_make_rounds(starts[order], num_chunks[order], chunk, device)), tuple(tails))


def _make_rounds(starts: Array, num_chunks: Array, chunk: int, device: torch.device) -> Iterator[ChunkRounds]:
    """Yield the rounds in groups of at most MAX_TOKENS tokens; only very long sequences need more than one group."""
    active = [int((num_chunks > index).sum()) for index in range(num_chunks.max())]
    group_size = max(1, MAX_TOKENS[device.type] // chunk // max(active, default=1))
    for start in range(0, len(active), group_size):
        group = active[start : start + group_size]
        firsts = [starts[:count] + (start + offset) * chunk for offset, count in enumerate(group)]
        rows = np.concatenate(firsts)[:, None] + np.arange(chunk)
        yield ChunkRounds(torch.from_numpy(rows).to(device), tuple(group))


def _make_tails(first: Array, lengths: Array, width: int, states: Array | None, device: torch.device) -> TailChunks:
    columns = np.arange(width)
    rows = first[:, None] + np.minimum(columns, lengths[:, None] - 1)
    valid = np.flatnonzero(columns < lengths[:, None])
    return TailChunks(
        rows=torch.from_numpy(rows).to(device),
        valid_rows=torch.from_numpy(valid).to(device),
        token_indices=torch.from_numpy(rows.reshape(-1)[valid]).to(device),
        state_indices=None if states is None else torch.from_numpy(states).to(device),
    )

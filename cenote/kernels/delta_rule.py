"""The gated delta rule over a packed batch: chunks one after another, sequences side by side, only ends padded."""

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

# tokens of a sequence that are computed at once; a GPU's time goes into the number of steps
CHUNK_SIZE = {"cpu": 64, "cuda": 128}
# what a sequence has beyond whole chunks is computed as the smallest of these that holds it
TAIL_SIZES = (16, 32, 64, 128)
# tokens whose chunks are in memory together
MAX_TOKENS = {"cpu": 4096, "cuda": 16384}


class DeltaRuleInputs(NamedTuple):
    """S = decay * S; S = S + key (strength * (value - key S))'; out = query S, from S = 0 on, token by token"""

    query: Tensor  # [tokens, key heads, k]
    key: Tensor  # [tokens, key heads, k]
    value: Tensor  # [tokens, key heads, group, v]; so many heads of values have the same keys
    log_decay: Tensor  # [tokens, key heads, group]
    beta: Tensor  # [tokens, key heads, group]


class ChunkRounds(NamedTuple):
    """In every round the next whole chunk of all sequences that have one; those that have none drop out at the end."""

    rows: Tensor  # [whole chunks, tokens of each], round after round
    num_active: tuple[int, ...]  # the number of chunks in each


class TailChunks(NamedTuple):
    """The last tokens of some sequences, as many of each; where one has fewer, its last token comes again."""

    rows: Tensor  # [ends, width]
    valid_rows: Tensor  # [tokens of them], which of all these rows are the first of their token
    token_indices: Tensor  # [tokens of them], and which tokens those are
    state_indices: Tensor | None  # [ends], which state each goes on from; None: they are whole sequences


class ChunkPlan(NamedTuple):
    """Some sequences of a batch, those with the most whole chunks first."""

    rounds: tuple[ChunkRounds, ...]
    tails: tuple[TailChunks, ...]


class ChunkTerms(NamedTuple):
    """Stretches of tokens, each as if no other came before it: [chunks, key heads, group, width, ...]"""

    query: Tensor  # [..., k], one for all of a group
    key: Tensor  # [..., k], likewise
    beta: Tensor  # [..., 1]
    cum_log_decay: Tensor  # [..., 1], the logarithm of what is left of the state before
    inverse: Tensor  # [..., width], from what tokens would write if each were the first to what they write
    updates: Tensor  # [..., v]
    attention: Tensor  # [..., width], how much of what a token wrote each later one reads


class StateTerms(NamedTuple):
    """What they have to do with the states around them: [chunks * heads, width, ...]"""

    updates: Tensor  # [..., v], if the state before is 0
    state_keys: Tensor  # [..., k], of that state: what it holds of this, tokens do not write again
    attention: Tensor  # [..., width]
    query: Tensor  # [..., k], for the state before, as far as it is left then
    key: Tensor  # [..., k], for the state behind, as far as it is left there
    decay: Tensor  # [chunks * heads, 1, 1], of the state before, behind the chunk


def gated_delta_rule(inputs: DeltaRuleInputs, batch: PackedBatch) -> Tensor:
    """[tokens, key heads, group, v], all in float32."""
    out = torch.empty_like(inputs.value)
    for plan in _make_plans(batch.seq_lens_cpu, batch.device):
        states = _run_full_chunks(inputs, plan, out) if plan.rounds else None
        for ends in plan.tails:
            chunks = _chunk_terms(inputs, ends.rows)
            if states is None or ends.state_indices is None:
                read = (chunks.attention @ chunks.updates).flatten(0, 2)
            else:
                links = _state_terms(chunks)
                state = states.view(-1, _num_heads(inputs), *states.shape[1:])[ends.state_indices].flatten(0, 1)
                read = _compute_outputs(links, _compute_updates(links, state), state)
            out[ends.token_indices] = _to_token_order(read, inputs).flatten(0, 1)[ends.valid_rows]
    return out


def _run_full_chunks(inputs: DeltaRuleInputs, plan: ChunkPlan, out: Tensor) -> Tensor:
    """Fill in what their tokens read; the state behind the last of each sequence, [sequences * heads, k, v]."""
    heads = _num_heads(inputs)
    state = inputs.value.new_zeros(plan.rounds[0].num_active[0] * heads, inputs.key.shape[-1], inputs.value.shape[-1])
    for rows, rounds in plan.rounds:
        everything, done = _state_terms(_chunk_terms(inputs, rows)), 0
        read = []
        for active in rounds:
            links = StateTerms(*(part[done * heads : (done + active) * heads] for part in everything))
            before = state[: active * heads]
            written = _compute_updates(links, before)
            read.append(_compute_outputs(links, written, before))
            before.mul_(links.decay).baddbmm_(links.key.mT, written)
            done += active
        out[rows] = _to_token_order(torch.cat(read), inputs)
    return state


def _compute_updates(terms: StateTerms, state: Tensor) -> Tensor:
    return torch.baddbmm(terms.updates, terms.state_keys, state, alpha=-1)


def _compute_outputs(terms: StateTerms, updates: Tensor, state: Tensor) -> Tensor:
    return torch.baddbmm(terms.attention @ updates, terms.query, state)


def _chunk_terms(inputs: DeltaRuleInputs, rows: Tensor) -> ChunkTerms:
    query, key = (part[rows].transpose(1, 2)[:, :, None].contiguous() for part in (inputs.query, inputs.key))
    value = inputs.value[rows].permute(0, 2, 3, 1, 4).contiguous()
    strength = inputs.beta[rows].permute(0, 2, 3, 1)[..., None].contiguous()
    passed = inputs.log_decay[rows].permute(0, 2, 3, 1).cumsum(-1)[..., None]
    decay = (passed - passed.mT).tril_().exp_()  # of what follows it would be a growth
    # row by row from the first: a product of powers would lose all digits where tokens come again and again
    system = (key @ key.mT) * decay * strength
    alone = torch.eye(rows.shape[1], device=rows.device).expand_as(system)
    solved = torch.linalg.solve_triangular(system, alone, upper=False, unitriangular=True)
    seen = (query @ key.mT * decay).tril_()
    return ChunkTerms(query, key, strength, passed, solved, solved @ (value * strength), seen)


def _state_terms(chunks: ChunkTerms) -> StateTerms:
    since, until = chunks.cum_log_decay.exp(), (chunks.cum_log_decay[..., -1:, :] - chunks.cum_log_decay).exp()
    parts = (
        chunks.updates,
        chunks.inverse @ (chunks.key * (since * chunks.beta)),
        chunks.attention,
        chunks.query * since,
        chunks.key * until,
        since[..., -1:, :],
    )
    return StateTerms(*(part.flatten(0, 2) for part in parts))


def _num_heads(inputs: DeltaRuleInputs) -> int:
    _, key_heads, group, _ = inputs.value.shape
    return key_heads * group


def _to_token_order(x: Tensor, inputs: DeltaRuleInputs) -> Tensor:
    """[chunks * heads, width, v] -> [chunks, width, key heads, group, v]"""
    return x.reshape(-1, *inputs.value.shape[1:3], *x.shape[1:]).permute(0, 3, 1, 2, 4)


@lru_cache(maxsize=8)  # all layers of a model ask for the same
def _make_plans(lengths: tuple[int, ...], device: torch.device) -> tuple[ChunkPlan, ...]:
    """Neighbouring sequences together, as many as memory is meant for."""
    most = MAX_TOKENS[device.type]
    firsts, tokens = [0], 0
    for number, length in enumerate(lengths):
        if tokens and tokens + length > most:
            firsts.append(number)
            tokens = 0
        tokens += length
    starts = np.cumsum((0, *lengths))
    groups = zip(firsts, (*firsts[1:], len(lengths)), strict=True)
    return tuple(_make_plan(starts[first:end], np.array(lengths[first:end]), device) for first, end in groups)


def _make_plan(starts: Array, lengths: Array, device: torch.device) -> ChunkPlan:
    chunk = CHUNK_SIZE[device.type]
    whole, rest = np.divmod(lengths, chunk)
    order = np.argsort(-whole, kind="stable")
    place = np.argsort(order)  # of a sequence, among the states
    ends = []
    for least, width in pairwise((0, *TAIL_SIZES)):
        for continued in (False, True):
            numbers = np.flatnonzero((rest > least) & (rest <= width) & ((whole > 0) == continued))
            if len(numbers):
                first = starts[numbers] + whole[numbers] * chunk
                ends.append(_make_tails(first, rest[numbers], width, place[numbers] if continued else None, device))
    return ChunkPlan(tuple(_make_rounds(starts[order], whole[order], chunk, device)), tuple(ends))


def _make_rounds(starts: Array, num_chunks: Array, chunk: int, device: torch.device) -> Iterator[ChunkRounds]:
    """All rounds, as many together as memory is meant for: more than one only where a sequence is very long."""
    active = [int((num_chunks > turn).sum()) for turn in range(num_chunks.max())]
    together = max(1, MAX_TOKENS[device.type] // chunk // max(active, default=1))
    for turn in range(0, len(active), together):
        some = active[turn : turn + together]
        firsts = [starts[:count] + (turn + number) * chunk for number, count in enumerate(some)]
        rows = np.concatenate(firsts)[:, None] + np.arange(chunk)
        yield ChunkRounds(torch.from_numpy(rows).to(device), tuple(some))


def _make_tails(first: Array, lengths: Array, width: int, states: Array | None, device: torch.device) -> TailChunks:
    columns = np.arange(width)
    rows = first[:, None] + np.minimum(columns, lengths[:, None] - 1)
    real = np.flatnonzero(columns < lengths[:, None])
    return TailChunks(
        rows=torch.from_numpy(rows).to(device),
        valid_rows=torch.from_numpy(real).to(device),
        token_indices=torch.from_numpy(rows.reshape(-1)[real]).to(device),
        state_indices=None if states is None else torch.from_numpy(states).to(device),
    )

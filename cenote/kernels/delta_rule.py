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
CHUNK = {"cpu": 64, "cuda": 128}
# what a sequence has beyond whole chunks is computed as the smallest of these that holds it
WIDTHS = (16, 32, 64, 128)
# tokens whose chunks are in memory together
AT_ONCE = {"cpu": 4096, "cuda": 16384}


class Rule(NamedTuple):
    """S = decay * S; S = S + key (strength * (value - key S))'; out = query S, from S = 0 on, token by token"""

    query: Tensor  # [tokens, key heads, k]
    key: Tensor  # [tokens, key heads, k]
    value: Tensor  # [tokens, key heads, group, v]; so many heads of values have the same keys
    log_decay: Tensor  # [tokens, key heads, group]
    strength: Tensor  # [tokens, key heads, group]


class Rounds(NamedTuple):
    """In every round the next whole chunk of all sequences that have one; those that have none drop out at the end."""

    rows: Tensor  # [whole chunks, tokens of each], round after round
    active: tuple[int, ...]  # the number of chunks in each


class Ends(NamedTuple):
    """The last tokens of some sequences, as many of each; where one has fewer, its last token comes again."""

    rows: Tensor  # [ends, width]
    real: Tensor  # [tokens of them], which of all these rows are the first of their token
    tokens: Tensor  # [tokens of them], and which tokens those are
    states: Tensor | None  # [ends], which state each goes on from; None: they are whole sequences


class Plan(NamedTuple):
    """Some sequences of a batch, those with the most whole chunks first."""

    rounds: tuple[Rounds, ...]
    ends: tuple[Ends, ...]


class Chunks(NamedTuple):
    """Stretches of tokens, each as if no other came before it: [chunks, key heads, group, width, ...]"""

    query: Tensor  # [..., k], one for all of a group
    key: Tensor  # [..., k], likewise
    strength: Tensor  # [..., 1]
    passed: Tensor  # [..., 1], the logarithm of what is left of the state before
    solved: Tensor  # [..., width], from what tokens would write if each were the first to what they write
    written: Tensor  # [..., v]
    seen: Tensor  # [..., width], how much of what a token wrote each later one reads


class Links(NamedTuple):
    """What they have to do with the states around them: [chunks * heads, width, ...]"""

    written: Tensor  # [..., v], if the state before is 0
    known: Tensor  # [..., k], of that state: what it holds of this, tokens do not write again
    seen: Tensor  # [..., width]
    query: Tensor  # [..., k], for the state before, as far as it is left then
    key: Tensor  # [..., k], for the state behind, as far as it is left there
    left: Tensor  # [chunks * heads, 1, 1], of the state before, behind the chunk


def gated_delta_rule(rule: Rule, batch: PackedBatch) -> Tensor:
    """[tokens, key heads, group, v], all in float32."""
    out = torch.empty_like(rule.value)
    for plan in _plans(batch.host_lengths, batch.device):
        states = _through_whole_chunks(rule, plan, out) if plan.rounds else None
        for ends in plan.ends:
            chunks = _chunks(rule, ends.rows)
            if states is None or ends.states is None:
                read = (chunks.seen @ chunks.written).flatten(0, 2)
            else:
                links = _links(chunks)
                state = states.view(-1, _num_heads(rule), *states.shape[1:])[ends.states].flatten(0, 1)
                read = _read(links, _written(links, state), state)
            out[ends.tokens] = _by_token(read, rule).flatten(0, 1)[ends.real]
    return out


def _through_whole_chunks(rule: Rule, plan: Plan, out: Tensor) -> Tensor:
    """Fill in what their tokens read; the state behind the last of each sequence, [sequences * heads, k, v]."""
    heads = _num_heads(rule)
    state = rule.value.new_zeros(plan.rounds[0].active[0] * heads, rule.key.shape[-1], rule.value.shape[-1])
    for rows, rounds in plan.rounds:
        everything, done = _links(_chunks(rule, rows)), 0
        read = []
        for active in rounds:
            links = Links(*(part[done * heads : (done + active) * heads] for part in everything))
            before = state[: active * heads]
            written = _written(links, before)
            read.append(_read(links, written, before))
            before.mul_(links.left).baddbmm_(links.key.mT, written)
            done += active
        out[rows] = _by_token(torch.cat(read), rule)
    return state


def _written(links: Links, state: Tensor) -> Tensor:
    return torch.baddbmm(links.written, links.known, state, alpha=-1)


def _read(links: Links, written: Tensor, state: Tensor) -> Tensor:
    return torch.baddbmm(links.seen @ written, links.query, state)


def _chunks(rule: Rule, rows: Tensor) -> Chunks:
    query, key = (part[rows].transpose(1, 2)[:, :, None].contiguous() for part in (rule.query, rule.key))
    value = rule.value[rows].permute(0, 2, 3, 1, 4).contiguous()
    strength = rule.strength[rows].permute(0, 2, 3, 1)[..., None].contiguous()
    passed = rule.log_decay[rows].permute(0, 2, 3, 1).cumsum(-1)[..., None]
    decay = (passed - passed.mT).tril_().exp_()  # of what follows it would be a growth
    # row by row from the first: a product of powers would lose all digits where tokens come again and again
    system = (key @ key.mT) * decay * strength
    alone = torch.eye(rows.shape[1], device=rows.device).expand_as(system)
    solved = torch.linalg.solve_triangular(system, alone, upper=False, unitriangular=True)
    seen = (query @ key.mT * decay).tril_()
    return Chunks(query, key, strength, passed, solved, solved @ (value * strength), seen)


def _links(chunks: Chunks) -> Links:
    since, until = chunks.passed.exp(), (chunks.passed[..., -1:, :] - chunks.passed).exp()
    parts = (
        chunks.written,
        chunks.solved @ (chunks.key * (since * chunks.strength)),
        chunks.seen,
        chunks.query * since,
        chunks.key * until,
        since[..., -1:, :],
    )
    return Links(*(part.flatten(0, 2) for part in parts))


def _num_heads(rule: Rule) -> int:
    _, key_heads, group, _ = rule.value.shape
    return key_heads * group


def _by_token(x: Tensor, rule: Rule) -> Tensor:
    """[chunks * heads, width, v] -> [chunks, width, key heads, group, v]"""
    return x.reshape(-1, *rule.value.shape[1:3], *x.shape[1:]).permute(0, 3, 1, 2, 4)


@lru_cache(maxsize=8)  # all layers of a model ask for the same
def _plans(lengths: tuple[int, ...], device: torch.device) -> tuple[Plan, ...]:
    """Neighbouring sequences together, as many as memory is meant for."""
    most = AT_ONCE[device.type]
    firsts, tokens = [0], 0
    for number, length in enumerate(lengths):
        if tokens and tokens + length > most:
            firsts.append(number)
            tokens = 0
        tokens += length
    starts = np.cumsum((0, *lengths))
    groups = zip(firsts, (*firsts[1:], len(lengths)), strict=True)
    return tuple(_plan(starts[first:end], np.array(lengths[first:end]), device) for first, end in groups)


def _plan(starts: Array, lengths: Array, device: torch.device) -> Plan:
    chunk = CHUNK[device.type]
    whole, rest = np.divmod(lengths, chunk)
    order = np.argsort(-whole, kind="stable")
    place = np.argsort(order)  # of a sequence, among the states
    ends = []
    for least, width in pairwise((0, *WIDTHS)):
        for continued in (False, True):
            numbers = np.flatnonzero((rest > least) & (rest <= width) & ((whole > 0) == continued))
            if len(numbers):
                first = starts[numbers] + whole[numbers] * chunk
                ends.append(_ends(first, rest[numbers], width, place[numbers] if continued else None, device))
    return Plan(tuple(_rounds(starts[order], whole[order], chunk, device)), tuple(ends))


def _rounds(starts: Array, whole: Array, chunk: int, device: torch.device) -> Iterator[Rounds]:
    """All rounds, as many together as memory is meant for: more than one only where a sequence is very long."""
    active = [int((whole > turn).sum()) for turn in range(whole.max())]
    together = max(1, AT_ONCE[device.type] // chunk // max(active, default=1))
    for turn in range(0, len(active), together):
        some = active[turn : turn + together]
        firsts = [starts[:count] + (turn + number) * chunk for number, count in enumerate(some)]
        rows = np.concatenate(firsts)[:, None] + np.arange(chunk)
        yield Rounds(torch.from_numpy(rows).to(device), tuple(some))


def _ends(first: Array, lengths: Array, width: int, states: Array | None, device: torch.device) -> Ends:
    columns = np.arange(width)
    rows = first[:, None] + np.minimum(columns, lengths[:, None] - 1)
    real = np.flatnonzero(columns < lengths[:, None])
    return Ends(
        rows=torch.from_numpy(rows).to(device),
        real=torch.from_numpy(real).to(device),
        tokens=torch.from_numpy(rows.reshape(-1)[real]).to(device),
        states=None if states is None else torch.from_numpy(states).to(device),
    )

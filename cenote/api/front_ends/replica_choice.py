"""Which replica computes a request, and how the inputs of a large one are divided; no tasks and no sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from zlib import crc32

import numpy as np

from cenote.api.admission.cost import count_tokens
from cenote.api.admission.counters import REPLICA_TOKENS, Counters, find_model_column
from cenote.api.front_ends.replica_split import ReplicaPart
from cenote.protocol.input_types import Input, TextPair

# the preferred replica is chosen although it has more tokens in flight than another one, up to this factor
BALANCE_FACTOR = 1.25
# and so many tokens, if the same input is in flight there or may be in its result cache
SAME_INPUT_TOKENS = 4096
# parts of a request have at least so many tokens: a smaller batch takes as long on a GPU
MIN_CPU_PART_TOKENS, MIN_GPU_PART_TOKENS = 64, 8192
# a request is divided if it ends within this part of the time that it takes on one replica
SPLIT_GAIN = 0.8


class ReplicaLoads:
    """The estimated tokens in flight at each replica of a model, as counted by all front-ends."""

    def __init__(self, num_replicas: int, counters: Counters, slot: int) -> None:
        """`slot`: of the model in the counters."""
        first = find_model_column(slot) + REPLICA_TOKENS
        self._columns = range(first, first + num_replicas)
        self._counters = counters

    def read(self) -> list[float]:
        """Return the tokens in flight at each replica."""
        return [self._counters.total(column) for column in self._columns]

    def add(self, replica: int, tokens: float) -> None:
        self._counters.own[self._columns[replica]] += tokens


class ReplicaChooser:
    """Choose replicas by what is in flight at each."""

    def __init__(self, loads: ReplicaLoads) -> None:
        self.loads = loads
        self.has_result_cache = False  # of each replica: an input is looked up where it was computed before
        self._same_inputs: dict[int, tuple[int, int]] = {}  # by digest: a replica, and requests in flight there

    def choose(self, candidates: Sequence[int], route: ReplicaKey) -> int:
        loads, digest = self.loads.read(), route.digest
        if digest is not None and (same := self._same_inputs.get(digest)) is not None:
            return choose_replica(candidates, loads, same[0], SAME_INPUT_TOKENS)
        preferred = find_preferred(candidates, digest, len(loads))
        return choose_replica(candidates, loads, preferred, SAME_INPUT_TOKENS if self.has_result_cache else 0.0)

    @contextmanager
    def in_flight(self, replica: int, route: ReplicaKey) -> Iterator[None]:
        """Count a request as in flight at a replica, until the end of the block."""
        digest = route.digest
        if digest is not None:
            same, count = self._same_inputs.get(digest, (replica, 0))
            self._same_inputs[digest] = same, count + 1
        self.loads.add(replica, route.tokens)
        try:
            yield
        finally:
            self.loads.add(replica, -route.tokens)
            if digest is not None:
                same, count = self._same_inputs[digest]
                if count > 1:
                    self._same_inputs[digest] = same, count - 1
                else:
                    del self._same_inputs[digest]

    def divide(self, candidates: Sequence[int], inputs: Sequence[Input], device: str) -> Sequence[ReplicaPart]:
        """Return the parts of a request."""
        loads, sizes = self.loads.read(), list(map(count_tokens, inputs))
        if self.has_result_cache and (parts := divide_by_digest(candidates, loads, inputs, sizes)):
            return parts
        min_part = MIN_CPU_PART_TOKENS if device.startswith("cpu") else MIN_GPU_PART_TOKENS
        shares = divide_tokens(candidates, loads, sum(sizes), min_part)
        ranges = divide_inputs(sizes, list(shares.values()))
        return [ReplicaPart(replica, rows) for replica, rows in zip(shares, ranges, strict=True) if rows]


class ReplicaKey(NamedTuple):
    """What the choice of a replica depends on."""

    tokens: int  # estimated
    digest: int | None  # equal for equal inputs, in every front-end; None: not computed for this type of input
    adapter: str | None = None


def make_route(inputs: Iterable[Input], adapter: object = None) -> ReplicaKey:
    """Return the route of a request; its digest is that of the first input, or of the first two."""
    tokens, digest = 0, None
    for index, item in enumerate(inputs):
        tokens += count_tokens(item)
        if index < 2 and (number := digest_input(item)) is not None:
            digest = number if digest is None else 31 * digest + number
    return ReplicaKey(tokens, digest, adapter if isinstance(adapter, str) else None)


def digest_input(item: Input) -> int | None:
    if isinstance(item, str):
        return crc32(item.encode(errors="surrogatepass"))
    if isinstance(item, TextPair):
        return crc32(item.document.encode(errors="surrogatepass"), crc32(item.query.encode(errors="surrogatepass")))
    if isinstance(item, list | tuple):
        return hash(tuple(item)) & 0xFFFFFFFF  # hashes of integers are the same in all processes
    if isinstance(item, np.ndarray):
        return crc32(item.tobytes())
    return None


def choose_replica(
    candidates: Sequence[int], loads: Sequence[float], preferred: int | None, slack_tokens: float = 0.0
) -> int:
    """Return the preferred replica unless it has clearly more tokens in flight than the least loaded one."""
    least = min(candidates, key=loads.__getitem__)
    if (
        preferred is not None
        and preferred in candidates
        and loads[preferred] <= BALANCE_FACTOR * loads[least] + slack_tokens
    ):
        return preferred
    return least


def find_preferred(candidates: Sequence[int], digest: int | None, num_replicas: int) -> int | None:
    """Return the replica for equal inputs: the same one while it is available."""
    if digest is None:
        return None
    first = digest % num_replicas
    return first if first in candidates else candidates[digest // num_replicas % len(candidates)]


def divide_tokens(
    candidates: Sequence[int], loads: Sequence[float], tokens: float, min_part: float
) -> dict[int, float]:
    """Return the tokens for each replica such that all parts end at the same time; one replica if that is as fast.

    Replicas with little in flight get more, and those with too much get nothing.
    """
    chosen = sorted(candidates, key=loads.__getitem__)
    least = loads[chosen[0]]
    while len(chosen) > 1:
        level = (tokens + sum(loads[index] for index in chosen)) / len(chosen)
        if level - loads[chosen[-1]] >= min_part:
            break
        chosen.pop()
    if len(chosen) == 1 or level > least + SPLIT_GAIN * tokens:
        return {chosen[0]: tokens}
    return {index: level - loads[index] for index in chosen}


def divide_by_digest(
    candidates: Sequence[int], loads: Sequence[float], inputs: Sequence[Input], sizes: Sequence[int]
) -> Sequence[ReplicaPart]:
    """Return the parts in which every input is at its preferred replica; none if one of these has clearly more."""
    rows: dict[int, list[int]] = {}
    totals = {replica: loads[replica] for replica in candidates}
    for row, item in enumerate(inputs):
        if (replica := find_preferred(candidates, digest_input(item), len(loads))) is None:
            return ()
        rows.setdefault(replica, []).append(row)
        totals[replica] += sizes[row]
    if max(totals.values()) > BALANCE_FACTOR * min(totals.values()) + SAME_INPUT_TOKENS:
        return ()
    return [ReplicaPart(replica, part) for replica, part in rows.items()]


def divide_inputs(sizes: Sequence[int], shares: Sequence[float]) -> list[range]:
    """Return consecutive ranges of inputs whose sizes are about proportional to the shares; some may be empty."""
    total, all_shares = sum(sizes), sum(shares)
    ranges, start, done, target = [], 0, 0, 0.0
    for number, share in enumerate(shares, 1):
        target += share / all_shares * total
        end = start
        while end < len(sizes) and (number == len(shares) or done + sizes[end] / 2 <= target):
            done += sizes[end]
            end += 1
        ranges.append(range(start, end))
        start = end
    return ranges

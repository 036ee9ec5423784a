"""Requests of a simulated load, their arrival times and lengths, and policies: which replica gets a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cenote.api.front_ends.replica_choice import BALANCE_FACTOR, choose_replica
from cenote.bench.load import LoadPattern


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One text that arrives at a time; `content` is equal for equal texts."""

    arrival_s: float
    tokens: int
    content: int


def make_requests(
    load: LoadPattern, *, mean_tokens: float, sigma: float, max_tokens: int = 8192, num_contents: int | None = None
) -> list[SimulatedRequest]:
    """Make requests of log-normal lengths; with `num_contents` texts repeat, the first ones more often (Zipf)."""
    random = np.random.default_rng([load.seed, 1])
    times = list(load.arrival_times())
    count = len(times) if num_contents is None else num_contents
    lengths = random.lognormal(np.log(mean_tokens) - sigma**2 / 2, sigma, count).clip(1, max_tokens).astype(int)
    contents = np.arange(len(times))
    if num_contents is not None:
        weights = 1 / np.arange(1, num_contents + 1)
        contents = random.choice(num_contents, len(times), p=weights / weights.sum())
    return [
        SimulatedRequest(at, int(lengths[content]), int(content)) for at, content in zip(times, contents, strict=True)
    ]


def make_trace(load: LoadPattern, lengths: Sequence[int]) -> list[SimulatedRequest]:
    """Make the requests of a load test: its arrival times, and the lengths of its texts in turn."""
    return [
        SimulatedRequest(at, lengths[index % len(lengths)], index % len(lengths))
        for index, at in enumerate(load.arrival_times())
    ]


class ReplicaState(Protocol):
    @property
    def tokens_in_flight(self) -> int: ...


Policy = Callable[[SimulatedRequest, Sequence[ReplicaState]], int]


def make_policy(name: str, seed: int) -> Policy:
    return POLICIES[name](np.random.default_rng([seed, 2]))


def round_robin(random: np.random.Generator) -> Policy:
    turn = -1

    def choose(request: SimulatedRequest, replicas: Sequence[ReplicaState]) -> int:
        nonlocal turn
        turn = (turn + 1) % len(replicas)
        return turn

    return choose


def random_choice(random: np.random.Generator) -> Policy:
    return lambda request, replicas: int(random.integers(len(replicas)))


def least_tokens(random: np.random.Generator) -> Policy:
    """The policy of `cenote serve` without a result cache, for texts that are not in flight yet."""

    def choose(request: SimulatedRequest, replicas: Sequence[ReplicaState]) -> int:
        loads = [replica.tokens_in_flight for replica in replicas]
        return choose_replica(range(len(replicas)), loads, hash_content(request.content) % len(replicas))

    return choose


def two_choices(random: np.random.Generator) -> Policy:
    """The less loaded one of two random replicas: as good as all for balancers that see stale loads."""

    def choose(request: SimulatedRequest, replicas: Sequence[ReplicaState]) -> int:
        if len(replicas) == 1:
            return 0
        first, second = random.choice(len(replicas), 2, replace=False)
        return int(min(first, second, key=lambda at: replicas[at].tokens_in_flight))

    return choose


def cache_aware(random: np.random.Generator) -> Policy:
    """The replica that the text belongs to by its content, unless it has clearly more to do than another one."""

    def choose(request: SimulatedRequest, replicas: Sequence[ReplicaState]) -> int:
        preferred = hash_content(request.content) % len(replicas)
        least = find_least(replicas, request.content)
        limit = BALANCE_FACTOR * (replicas[least].tokens_in_flight + request.tokens)
        return preferred if replicas[preferred].tokens_in_flight <= limit else least

    return choose


def find_least(replicas: Sequence[ReplicaState], content: int) -> int:
    """Return the replica with the fewest tokens in flight; equal ones in turn by content."""
    start = hash_content(content) % len(replicas)
    order = [*range(start, len(replicas)), *range(start)]
    best: int = min(order, key=lambda at: replicas[at].tokens_in_flight)
    return best


def hash_content(content: int) -> int:
    return (content * 2654435761 & 0xFFFFFFFF) >> 8  # multiplicative hashing: neighbours do not follow each other


POLICIES: dict[str, Callable[[np.random.Generator], Policy]] = {
    "round-robin": round_robin,
    "random": random_choice,
    "least-tokens": least_tokens,
    "two-choices": two_choices,
    "cache-aware": cache_aware,
}

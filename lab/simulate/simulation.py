"""Discrete-event simulation of replicas that compute batches of waiting requests."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.simulate.routing import Policy, SimulatedRequest
from lab.simulate.service_time import ServiceTime


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    max_batch_tokens: int = 16_384
    max_batch_sequences: int = 1024
    cache_entries: int = 0  # results of each replica


@dataclass(slots=True)
class Replica:
    tokens_in_flight: int = 0
    waiting: deque[int] = field(default_factory=deque)  # indices of requests, in the order of arrival
    running: list[int] = field(default_factory=list)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)  # contents, least recently used first
    busy_s: float = 0.0
    num_batches: int = 0


@dataclass(frozen=True, slots=True)
class SimulationResult:
    latencies_s: np.ndarray[tuple[int], np.dtype[np.float64]]  # of every request, in the order of arrival
    seconds: float  # until the last request is answered
    tokens: int
    busy: float  # mean share of time that replicas compute
    num_batches: int
    cache_hits: int

    @property
    def requests_per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_s, percent)) * 1e3


def simulate(
    requests: Sequence[SimulatedRequest],
    service: ServiceTime,
    policy: Policy,
    *,
    num_replicas: int,
    settings: ReplicaSettings = ReplicaSettings(),
    seed: int = 0,
) -> SimulationResult:
    """Run the requests through replicas that start a batch whenever they are idle and something waits."""
    return _Simulation(requests, service, policy, num_replicas, settings, seed).run()


class _Simulation:
    def __init__(
        self,
        requests: Sequence[SimulatedRequest],
        service: ServiceTime,
        policy: Policy,
        num_replicas: int,
        settings: ReplicaSettings,
        seed: int,
    ) -> None:
        self.requests, self.service, self.policy, self.settings = requests, service, policy, settings
        self.replicas = [Replica() for _ in range(num_replicas)]
        self.random = np.random.default_rng([seed, 3])
        self.finished_s = np.zeros(len(requests))
        self.cache_hits = 0
        self.ends: list[tuple[float, int]] = []  # when a replica can start its next batch

    def run(self) -> SimulationResult:
        for index, request in enumerate(self.requests):
            self._finish_until(request.arrival_s)
            self._arrive(index, request)
        self._finish_until(float("inf"))
        arrivals = np.array([request.arrival_s for request in self.requests])
        seconds = float(self.finished_s.max(initial=0.0))
        return SimulationResult(
            latencies_s=self.finished_s - arrivals,
            seconds=seconds,
            tokens=sum(request.tokens for request in self.requests),
            busy=sum(replica.busy_s for replica in self.replicas) / len(self.replicas) / max(seconds, 1e-12),
            num_batches=sum(replica.num_batches for replica in self.replicas),
            cache_hits=self.cache_hits,
        )

    def _arrive(self, index: int, request: SimulatedRequest) -> None:
        number = self.policy(request, self.replicas)
        replica = self.replicas[number]
        if request.content in replica.cache:
            replica.cache.move_to_end(request.content)
            self.cache_hits += 1
            self.finished_s[index] = request.arrival_s + self.service.overhead_s
            return
        replica.tokens_in_flight += request.tokens
        replica.waiting.append(index)
        if not replica.running:
            self._start_batch(number, request.arrival_s)

    def _finish_until(self, time_s: float) -> None:
        while self.ends and self.ends[0][0] <= time_s:
            ended_s, number = heapq.heappop(self.ends)
            replica = self.replicas[number]
            for index in replica.running:
                request = self.requests[index]
                self.finished_s[index] = ended_s - self.service.gap_s + self.service.overhead_s
                replica.tokens_in_flight -= request.tokens
                self._remember(replica, request.content)
            replica.running = []
            if replica.waiting:
                self._start_batch(number, ended_s)

    def _start_batch(self, number: int, time_s: float) -> None:
        replica = self.replicas[number]
        tokens = 0
        while replica.waiting and len(replica.running) < self.settings.max_batch_sequences:
            length = self.requests[replica.waiting[0]].tokens
            if replica.running and tokens + length > self.settings.max_batch_tokens:
                break
            replica.running.append(replica.waiting.popleft())
            tokens += length
        factor = self.service.factors[int(self.random.integers(len(self.service.factors)))]
        others = sum(other is not replica and bool(other.running) for other in self.replicas)  # when the batch starts
        seconds = self.service.expected_s(len(replica.running), tokens, others) * factor
        replica.busy_s += seconds
        replica.num_batches += 1
        heapq.heappush(self.ends, (time_s + seconds + self.service.gap_s, number))

    def _remember(self, replica: Replica, content: int) -> None:
        if not self.settings.cache_entries:
            return
        replica.cache[content] = None
        replica.cache.move_to_end(content)
        if len(replica.cache) > self.settings.cache_entries:
            replica.cache.popitem(last=False)

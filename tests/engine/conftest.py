"""Engines that return the token ids of every input, with injected faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from typing import Any

import pytest

from cenote.config.engine import EngineConfig
from cenote.engine.engine import PoolingEngine
from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.local_pending import LocalPending
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import PoolingError
from cenote.loading.loaded_model import LoadedModel
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from cenote.protocol.scheduling import SchedulingParams

MakeEngine = Callable[..., PoolingEngine]
SENDERS = [SchedulingParams(tenant=tenant, cache_salt=salt) for salt in ("", "salt") for tenant in "aba"]  # two tenants
SHARED = {"result_cache_bytes": 1 << 20, "result_cache_shared": True}  # a result cache for all
TIMEOUT_S = 20.0  # far more than any step takes


@pytest.fixture
def make_engine(loaded: LoadedModel) -> Iterator[MakeEngine]:
    """Make engines of the default model, stopped after the test; the default executor is an EchoExecutor."""
    engines: list[PoolingEngine] = []

    def make(executor: Any = None, *, fault: Any = None, **options: Any) -> PoolingEngine:
        echo = EchoExecutor() if fault is None else EchoExecutor(fault)
        engines.append(PoolingEngine(loaded, EngineConfig(dtype="float32", **options), executor or echo))
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop()


class BatchGate:
    """A fault that blocks every batch until opened, records the token ids of those that ran, and calls another."""

    def __init__(self, then: Callable[[ScheduledBatch], None] = lambda batch: None) -> None:
        self.then = then
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.token_ids: list[int] = []

    def __call__(self, batch: ScheduledBatch) -> None:
        self.reached.set()
        assert self.opened.wait(TIMEOUT_S)
        self.token_ids.extend(batch.inputs.token_ids.tolist())
        self.then(batch)


def raise_on_tokens(*markers: int) -> Callable[[ScheduledBatch], None]:
    """Return a fault that raises for batches with one of these token ids."""

    def fault(batch: ScheduledBatch) -> None:
        if set(markers) & set(batch.inputs.token_ids.tolist()):
            raise RuntimeError("poisoned")

    return fault


def make_request(inputs: Any, **request_kwargs: Any) -> PoolRequest:
    return PoolRequest(task="embed", inputs=inputs, **request_kwargs)


def block_engine(engine: PoolingEngine, gate: BatchGate) -> LocalPending:
    """Start a batch that blocks at the gate, so that further inputs wait in the queue."""
    state = engine.submit(make_request([[7]]))
    assert gate.reached.wait(10)
    return state


def echoed_token_ids(results: Many[PoolResult | PoolingError]) -> list[Any]:
    """Return the token ids of every result, or its error."""
    return [result if isinstance(result, PoolingError) else result.data.astype(int).tolist() for result in results]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.002)

"""Engines that answer every input with its own token ids, and helpers to make them misbehave."""

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
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import PoolingError
from cenote.loading.load import LoadedModel
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult

MakeEngine = Callable[..., PoolingEngine]
TIMEOUT_S = 20.0  # far more than anything here takes


@pytest.fixture
def make_engine(loaded: LoadedModel) -> Iterator[MakeEngine]:
    """Builds an engine around the default model; by default one whose executor only echoes."""
    engines: list[PoolingEngine] = []

    def make(executor: Any = None, *, fault: Any = None, **options: Any) -> PoolingEngine:
        echo = EchoExecutor() if fault is None else EchoExecutor(fault)
        engines.append(PoolingEngine(loaded, EngineConfig(dtype="float32", **options), executor or echo))
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop()


class BatchGate:
    """A fault that holds every batch back until it is opened, and counts the tokens that passed."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.token_ids: list[int] = []

    def __call__(self, batch: ScheduledBatch) -> None:
        self.reached.set()
        assert self.opened.wait(TIMEOUT_S)
        self.token_ids.extend(batch.inputs.token_ids.tolist())


def raise_on_tokens(*markers: int) -> Callable[[ScheduledBatch], None]:
    """A fault that strikes every batch with one of these token ids in it."""

    def strike(batch: ScheduledBatch) -> None:
        if set(markers) & set(batch.inputs.token_ids.tolist()):
            raise RuntimeError("poisoned")

    return strike


def make_request(inputs: Any, **request_kwargs: Any) -> PoolRequest:
    return PoolRequest(task="embed", inputs=inputs, **request_kwargs)


def echoed_token_ids(results: Many[PoolResult | PoolingError]) -> list[Any]:
    """The token ids that came back, or the error in their place."""
    return [answer if isinstance(answer, PoolingError) else answer.data.int().tolist() for answer in results]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)

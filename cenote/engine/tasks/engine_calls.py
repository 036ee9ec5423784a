"""The calls into the engine that tasks await, so that one implementation serves async and sync callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cenote.errors import PoolingError
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from cenote.utils.bounded_executor import RunInThread


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """How a task runs the model, and code that would block an event loop."""

    pool: Callable[[PoolRequest], Awaitable[list[PoolResult | PoolingError]]]
    run_in_thread: RunInThread

"""The calls into the engine that tasks await, so that one implementation serves async and sync callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from cenote.engine.request_state import PoolResults
from cenote.protocol.requests import PoolRequest
from cenote.utils.bounded_executor import RunInThread


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """How a task runs the model, and code that would block an event loop."""

    # the request, and per input the query embeddings whose MaxSim score is returned; None: return pooled data
    pool: Callable[[PoolRequest, Sequence[Tensor] | None], Awaitable[PoolResults]]
    run_in_thread: RunInThread

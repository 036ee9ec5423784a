"""What a fault is, and what it may use."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cenote.bench.load import LoadPattern
from lab.chaos.hook_folder import HookFolder
from lab.chaos.outcomes import FaultWindow
from lab.chaos.request_mix import RequestMix
from lab.chaos.sender import CheckedSender
from lab.chaos.server import ChaosServer
from lab.chaos.session import ChaosSession
from lab.chaos.traced_client import TracedClient


@dataclass(frozen=True, slots=True)
class FaultContext:
    """The server under test and the load on it."""

    server: ChaosServer
    session: ChaosSession
    client: TracedClient
    sender: CheckedSender  # of texts that are never the same; for requests that belong to a fault
    cache_folder: Path

    @property
    def hooks(self) -> HookFolder:
        return self.session.hooks

    @property
    def mix(self) -> RequestMix:
        return self.session.mix

    @property
    def source(self) -> random.Random:
        return self.session.source

    @property
    def max_fault_s(self) -> float:
        """How long a fault that lasts may last."""
        return self.session.options.max_fault_s


class Fault(ABC):
    """One kind of fault; the docstring of each class says what it does."""

    name: ClassVar[str]  # as in the tables of `expectations.py`
    serve_args: ClassVar[tuple[str, ...]] = ()  # of the servers that it needs; CACHE_FOLDER is replaced
    num_engine_failures: ClassVar[int] = 0  # how many the supervisor counts: five within a minute are its limit
    replaces_engine: ClassVar[bool] = False  # another engine process runs after it
    recovers_from_start: ClassVar[bool] = True  # False: the recovery begins when the fault has been removed

    def skip_reason(self, context: FaultContext) -> str | None:
        """Return why this machine or this server does not permit the fault."""
        return None

    @abstractmethod
    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        """Cause the fault and remove its cause."""


def make_open_loop(context: FaultContext, rate: float) -> LoadPattern:
    """Return a load for half of the longest time of a fault."""
    seed = context.source.getrandbits(32)
    return LoadPattern(None, rate=rate, num_requests=None, duration_s=context.max_fault_s / 2, seed=seed)


async def sleep_until_replaced(server: ChaosServer, engine: int, limit_s: float) -> bool:
    """Wait until another engine process runs; return False after the limit."""
    try:
        async with asyncio.timeout(limit_s):
            await server.wait_for_engine(other_than=engine)
    except TimeoutError:
        return False
    return True

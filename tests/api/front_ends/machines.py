"""A front-end and the engine processes that it is linked to, both in this process: they crash when a test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from cenote.api.engine_process.engine_server import FrontEndLink
from cenote.api.engine_process.token_batcher import TokenLink
from cenote.api.front_ends.remote_core import RemoteCore
from cenote.api.front_ends.remote_engine import RemoteEngine
from cenote.api.wire.control_messages import EngineExited, ExitCause, ReplayStats
from cenote.api.wire.device_table import DeviceRecorder, DeviceTable, make_device_table
from cenote.engine.engine import PoolingEngine
from cenote.engine.sequence_group import ScheduledBatch
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.api.front_ends.remote_link import attach_engine, wait_until
from tests.engine.conftest import BatchGate, MakeEngine


class HangOn:
    """A fault that blocks batches with one of some token ids, as a device that is about to crash."""

    def __init__(self, *token_ids: int) -> None:
        self.gate = BatchGate()
        self.token_ids = set(token_ids)
        self.batches: list[list[int]] = []

    def __call__(self, batch: ScheduledBatch) -> None:
        self.batches.append(batch.inputs.token_ids.tolist())
        if self.token_ids & set(self.batches[-1]):
            self.gate(batch)


class Machine:
    """A front-end and one engine after the other, which crash when the test says so."""

    def __init__(self, make: MakeEngine, engine_id: int = 0) -> None:
        self.make = make
        self.remote = RemoteEngine(engine_id=engine_id)
        self.stats: list[ReplayStats] = []
        self.remote.on_replay = self.stats.append
        self.num_exits = 0
        self.hangs: list[HangOn] = []

    async def start(self, *hang_on: int, **options: Any) -> HangOn:
        """Start an engine whose device hangs on some token ids."""
        hang = HangOn(*hang_on)
        self.hangs.append(hang)
        self.engine: PoolingEngine = self.make(fault=hang, **options)
        self.table = DeviceTable(make_device_table())
        DeviceRecorder(self.table, 0).attach(self.engine.core.loop)
        self.link: FrontEndLink = await attach_engine(self.remote, self.engine, self.num_exits)
        return hang

    async def hang(self, token_id: int, **options: Any) -> tuple[HangOn, asyncio.Task[Any]]:
        """Start an engine, and send it an input that its device hangs on."""
        hang = await self.start(token_id, **options)
        call = self.embed([[token_id]])
        await wait_until(hang.gate.reached.is_set)
        return hang, call

    async def crash(self, *, cause: ExitCause = "crash", reason: str = "exited with SIGSEGV") -> None:
        """Close the link and report what was on the device, as the supervisor does."""
        self.link.channel.close()
        await wait_until(lambda: self.remote.status != "ready")
        self.report(cause=cause, reason=reason)

    def report(self, *, cause: ExitCause = "crash", reason: str = "exited with SIGSEGV") -> None:
        self.num_exits += 1
        calls, is_isolated, _ = self.table.read()
        self.remote.on_engine_exited(EngineExited(0, self.num_exits, reason, calls, is_isolated, cause))
        self.remote.availability.on_report("restarting", reason)

    def embed(self, inputs: Sequence[Any], **options: Any) -> asyncio.Task[Any]:
        return embed(self.remote, inputs, **options)

    def total(self) -> ReplayStats:
        columns = [(item.num_replayed, item.num_quarantined, item.num_poison) for item in self.stats]
        return ReplayStats(0, *map(sum, zip(*columns, strict=True)))

    def close(self) -> None:
        for hang in self.hangs:
            hang.gate.opened.set()
        self.remote.close()
        if hasattr(self, "link"):
            self.link.channel.close()


@asynccontextmanager
async def run_machine(make: MakeEngine) -> AsyncIterator[Machine]:
    machine = Machine(make)
    try:
        async with asyncio.timeout(30):
            yield machine
        assert not machine.remote.calls.pending
        assert not machine.remote.quarantine.suspects
    finally:
        machine.close()
        await asyncio.sleep(0.01)


class BlockedRenderer:
    """A renderer that waits until it is allowed to go on, and counts its calls."""

    def __init__(self, core: RemoteCore) -> None:
        texts = core.renderer.texts
        self.renderer = texts.renderer
        self.started, self.allowed = threading.Event(), threading.Event()
        self.threads: list[str] = []
        texts.renderer = self  # type: ignore[assignment]

    def render(self, *arguments: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        self.started.set()
        assert self.allowed.wait(20)
        return self.renderer.render(*arguments)


def get_core(remote: RemoteEngine) -> RemoteCore:
    assert remote.core is not None
    return remote.core


def get_token_link(link: FrontEndLink) -> TokenLink:
    assert link.token_link is not None
    return link.token_link


def embed(remote: RemoteEngine, inputs: Sequence[Any], **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(remote.pool(PoolRequest(task="embed", inputs=inputs, **options)))


def values(results: Sequence[PoolResult]) -> list[list[int]]:
    return [np.asarray(result.data).astype(int).tolist() for result in results]

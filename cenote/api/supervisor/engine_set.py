"""EngineSet: the engine processes of one source and its options, one per replica; several names may share it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from cenote.api.admission.counters import Counters
from cenote.api.admission.engine_speed import SpeedReport
from cenote.api.supervisor.engine_child import EngineChild
from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import ChangeAdapter, EngineToSupervisor
from cenote.api.wire.messages import Call
from cenote.config.model_table import ModelEntry
from cenote.errors import EngineStopped, NotReady, PoolingError, UnknownModel, make_exited_error
from cenote.protocol.engine import EngineStatus
from cenote.protocol.model_info import ModelInfo
from cenote.utils.metrics import REPLICA_LABEL, MetricFamily, add_label, merge_families

logger = logging.getLogger("cenote")

# the state of a set is the first of these that one of its engines has
STATUS_ORDER: tuple[EngineStatus, ...] = ("ready", "restarting", "loading", "failed", "stopped")


class EngineSet:
    def __init__(
        self, entry: ModelEntry, children: Sequence[EngineChild], slot: int, adapters: Mapping[str, str] | None = None
    ) -> None:
        self.entry = entry  # the first that uses it
        self.children = children
        self.slot = slot  # of the counters of admission
        self.started_at = time.monotonic()
        self.model_info = b""  # as JSON, once an engine has loaded the model
        self._speed_report = SpeedReport(slot)
        self.is_stopping = False
        self.requested_adapters = dict(adapters or {})  # path by name, of those that requests have loaded
        self._adapter_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.loaded.add_done_callback(lambda loaded: loaded.exception())  # perhaps nobody waits for it

    @property
    def engine_ids(self) -> tuple[int, ...]:
        return tuple(child.engine_id for child in self.children)

    @property
    def status(self) -> EngineStatus:
        statuses = {child.status for child in self.children}
        return next(status for status in STATUS_ORDER if status in statuses)

    @property
    def outage(self) -> tuple[str, float]:
        """Why the engines do not answer, and since when as Unix time; "" and 0.0 while one of them does."""
        if self.status == "ready":
            return "", 0.0
        child = next(child for child in self.children if child.status == self.status)
        return child.reason, max(child.since for child in self.children)

    def report_speed(self, counters: Counters, late_s: float = 0.0) -> None:
        """Tell admission how fast the engines compute, and whether one of them has not computed until now."""
        ready = [child for child in self.children if child.status == "ready"]
        rates = [child.tokens_per_s for child in ready or self.children if child.tokens_per_s]
        rate = sum(rates) / len(rates) * len(ready or self.children) if rates else 0.0
        is_stopped = any(child.status != "ready" and child.has_been_ready for child in self.children)
        self._speed_report.write(counters, time.monotonic(), rate, late_s, is_stopped)

    def decode_model_info(self) -> ModelInfo | None:
        return msgspec.json.decode(self.model_info, type=ModelInfo) if self.model_info else None

    def measure_memory(self) -> int:
        return sum(child.measure_memory() for child in self.children)

    def on_ready(self, model_info: bytes) -> None:
        """One of the engines has loaded the model."""
        self.model_info = model_info
        if all(child.has_been_ready for child in self.children) and not self.loaded.done():
            self.loaded.set_result(None)

    def on_failed(self, error: Exception) -> None:
        """One of the engines cannot load the model."""
        if not self.loaded.done():
            self.loaded.set_exception(error)

    async def change_adapter(self, name: str, path: str | None, in_place: bool) -> None:
        """Load an adapter at all replicas, or unload it (`path` None); those that are being started get it later."""
        lock = self._adapter_locks.setdefault(name, asyncio.Lock())
        async with lock:
            errors = await self._change_everywhere(name, path, in_place)
            ignored: tuple[type[Exception], ...] = (EngineStopped,)
            if path is None and None in errors:  # a replica may have failed to load it again when it was restarted
                ignored = (EngineStopped, UnknownModel)
            if failures := [error for error in errors if error is not None and not isinstance(error, ignored)]:
                raise failures[0]
            if None not in errors:
                raise make_exited_error()
            loaded = next(child.adapters for child in self.children if child.adapters is not None)
            self.requested_adapters = set_path(self.requested_adapters, name, path)
            for child in self.children:
                child.adapters = set_path(loaded, name, path)
                (child.changed_adapters.discard if path is None else child.changed_adapters.add)(name)

    async def follow(self, requested: Mapping[str, str]) -> None:
        """Change the adapters that requests have changed at other engines of the model since these were started."""
        for name in {**self.requested_adapters, **requested}:
            if (path := requested.get(name)) != self.requested_adapters.get(name):
                try:
                    await self.change_adapter(name, path, in_place=True)
                except PoolingError as error:
                    logger.error("the adapter %s could not be changed: %s", name, error)

    async def _change_everywhere(self, name: str, path: str | None, in_place: bool) -> list[BaseException | None]:
        """Change an adapter at all engine processes that have loaded the model, and return the errors."""
        channels: list[Channel[EngineToSupervisor]] = []
        errors: list[BaseException | None] = []
        # a process that has loaded the model during the change got the adapters of before
        while added := [channel for channel in self._list_loaded() if channel not in channels]:
            channels += added
            errors += await call_all(added, ChangeAdapter(name, path, in_place))
        has_failed = any(error is not None and not isinstance(error, EngineStopped) for error in errors)
        if has_failed and path is not None and not in_place:
            loaded = [channel for channel, error in zip(channels, errors, strict=True) if error is None]
            await call_all(loaded, ChangeAdapter(name, None, False))
        return errors

    def _list_loaded(self) -> list[Channel[EngineToSupervisor]]:
        return [child.channel for child in self.children if child.is_ready and child.channel.is_open]

    async def collect_metrics(self) -> list[MetricFamily]:
        families = await asyncio.gather(*(child.collect_metrics() for child in self.children))
        if len(families) == 1:
            return families[0]
        return merge_families(
            add_label(family, REPLICA_LABEL, str(index)) for index, part in enumerate(families) for family in part
        )

    async def stop(self) -> None:
        """End the engine processes."""
        self.is_stopping = True
        self.on_failed(NotReady(f"the model {self.entry.name} is being unloaded; retry shortly"))
        await asyncio.gather(*(child.stop() for child in self.children))


def set_path(adapters: Mapping[str, str], name: str, path: str | None) -> dict[str, str]:
    """Return a copy of the adapters, path by name, with one that is loaded from `path`, or unloaded if that is None."""
    others = {key: value for key, value in adapters.items() if key != name}
    return others if path is None else {**others, name: path}


async def call_all(channels: Sequence[Channel[Any]], call: Call[Any]) -> list[BaseException | None]:
    """Return the errors of a call to several processes; None where it was answered."""
    results = await asyncio.gather(*(channel.call(call) for channel in channels), return_exceptions=True)
    return [result if isinstance(result, BaseException) else None for result in results]

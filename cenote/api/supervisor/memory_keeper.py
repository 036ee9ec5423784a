"""MemoryKeeper: unloads models to make room for others, and those that nobody uses."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from cenote.api.supervisor.engine_set import EngineSet
from cenote.api.supervisor.memory_budget import MemoryBudget, estimate, measure_used
from cenote.api.supervisor.table_row import TableRow
from cenote.config.model_table import ModelEntry
from cenote.config.server import ServerConfig
from cenote.errors import NotReady
from cenote.utils.bounded_executor import BoundedExecutor

if TYPE_CHECKING:
    from cenote.api.supervisor.model_manager import ModelManager

logger = logging.getLogger("cenote")

IDLE_CHECK_S = 0.5
RETRY_S = 0.05  # while other models are being loaded or unloaded


class MemoryKeeper:
    def __init__(self, models: ModelManager, settings: ServerConfig) -> None:
        self.models = models
        self.budget = MemoryBudget(settings)
        self.timeout_s = settings.replay_timeout_s
        self._lock = asyncio.Lock()  # one model at a time gets room
        self._thread = BoundedExecutor("memory", num_threads=1, max_waiting=1)  # folders may be large, or far away

    def has_room(self, row: TableRow) -> bool:
        """Whether a model fits besides those that are loaded at the start; the others are loaded on demand."""
        if not self.budget.is_limited:
            return True
        sets = self.models.sets
        need = estimate(row.entry, sets)
        if len(self.models.rows) == 1:
            self.budget.check_alone(row.name, need)
        used = measure_used(sets)
        if self.budget.fits(used.plus(need)):
            return True
        logger.info(
            "the model %s is loaded on demand: with it, the models would use %s",
            row.name,
            self.budget.describe(used.plus(need)),
        )
        return False

    async def start_in_budget(self, row: TableRow, entry: ModelEntry) -> EngineSet:
        """Start the engines of a row, under its lock, after others have been unloaded if they take its room."""
        if not self.budget.is_limited:
            return self.models.start_engines(entry)
        async with self._lock:
            ends_at = time.monotonic() + self.timeout_s
            while True:
                sets = list(self.models.sets)
                need = await self._thread.run(estimate, entry, sets)
                self.budget.check_alone(row.name, need)
                if self.budget.fits((await self._thread.run(measure_used, sets)).plus(need)):
                    return self.models.start_engines(entry)
                await self._unload_one(row, ends_at)

    async def _unload_one(self, row: TableRow, ends_at: float) -> None:
        """Unload the model that has not been used for longest, or wait until one can be unloaded."""
        counters = self.models.counters
        loaded = [other for other in self.models.rows.values() if other is not row and other.engines is not None]
        candidates = [
            other
            for other in loaded
            if not other.entry.pinned and not other.lock.locked() and other.status in ("ready", "failed")
        ]
        if candidates:
            victim = max(candidates, key=lambda other: other.measure_idle_s(counters))
            logger.info("unloading the model %s to make room for %s", victim.name, row.name)
            await self.models.unload_row(victim)
        elif time.monotonic() > ends_at or all(other.entry.pinned for other in loaded):
            used = self.budget.describe(measure_used(self.models.sets))
            raise NotReady(f"there is no room for the model {row.name}: others use {used}, and none can be unloaded")
        else:
            await asyncio.sleep(RETRY_S)

    async def unload_idle_models(self) -> None:
        """Unload models whose time without requests is over."""
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            for row in list(self.models.rows.values()):
                try:
                    await self._unload_if_idle(row)
                except Exception:  # of one model: the others are still unloaded, and this one perhaps the next time
                    logger.exception("the model %s could not be unloaded", row.name)

    async def _unload_if_idle(self, row: TableRow) -> None:
        keep_alive_s = row.entry.keep_alive_s
        if keep_alive_s is None or row.entry.pinned or row.status != "ready" or row.lock.locked():
            return
        if (idle_s := row.measure_idle_s(self.models.counters)) > keep_alive_s:
            logger.info("unloading the model %s: no request for %.1f s", row.name, idle_s)
            await self.models.unload_row(row)

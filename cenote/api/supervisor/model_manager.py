"""ModelManager: loads, unloads and replaces the models of a running server."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cenote.api.admission.counters import NUM_SLOTS, Counters
from cenote.api.model_row import ModelRow
from cenote.api.supervisor.engine_child import EngineChild
from cenote.api.supervisor.engine_launcher import EngineLauncher
from cenote.api.supervisor.engine_set import EngineSet
from cenote.api.supervisor.front_end_manager import FrontEndManager
from cenote.api.supervisor.memory_keeper import MemoryKeeper
from cenote.api.supervisor.replica_plan import plan_replicas
from cenote.api.supervisor.restart_policy import MAX_RESTART_DELAY_S
from cenote.api.supervisor.table_row import TableRow
from cenote.api.wire.control_messages import EngineExited, EngineInit, EngineState, ModelStates
from cenote.config.engine_json import encode_engine_config
from cenote.config.model_table import ModelEntry, ModelTable, change_entry, check_same, check_unique_names, parse_entry
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, NotReady, UnknownModel, make_exited_error
from cenote.protocol.names import get_public_name

logger = logging.getLogger("cenote")

# requests that an engine computes when its model is unloaded or replaced get this time; then they fail
DRAIN_TIMEOUT_S = 600.0


class ModelManager:
    """Owns the table of models; makes the changes that admins ask for, and follows what happens to engines."""

    front_ends: FrontEndManager

    def __init__(
        self,
        settings: ServerConfig,
        table: ModelTable,
        counters: Counters,
        on_failed: Callable[[BaseException], None],
        engine_command: Sequence[str] | None = None,
    ) -> None:
        self.settings = settings
        self.options = table.options  # of models that are added later
        self.rows = {entry.name: TableRow(entry) for entry in table.entries}
        self.counters = counters
        self.on_failed = on_failed  # called when no model can be loaded at the start
        self.launcher = EngineLauncher(engine_command)
        self.sets: list[EngineSet] = []  # all that run, also those that finish their last requests
        self.memory = MemoryKeeper(self, settings)
        self._engine_ids = itertools.count(1)
        self._is_stopping = False
        self.tasks: set[asyncio.Task[None]] = set()

    # start and stop

    def start(self) -> None:
        """Load the models that were asked for at the start, all at the same time."""
        for row in self.rows.values():
            row.is_first_load = row.is_required = row.entry.load == "start" and self.memory.has_room(row)
            if row.is_required:
                row.engines = self._find_shared(row.entry) or self.start_engines(row.entry)
                self._run(self._finish_first_load(row, row.engines))
        self.send_models()
        self._run(self.memory.unload_idle_models())

    async def stop(self) -> None:
        self._is_stopping = True
        for task in list(self.tasks):
            task.cancel()
        self.launcher.close()
        await asyncio.gather(*(engines.stop() for engines in self.sets))

    def _run(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _finish_first_load(self, row: TableRow, engines: EngineSet) -> None:
        try:
            await asyncio.shield(engines.loaded)
        except Exception as error:
            if row.engines is not engines:
                return  # the model has been reloaded or unloaded meanwhile
            row.engines, row.is_first_load = None, False
            row.set_error(str(error))
            if all(row.status == "failed" for row in self.rows.values()):
                self.on_failed(error)
                return
            logger.error("the model %s cannot be loaded: %s", row.name, error)
            self.send_models()
            await self._stop_if_unused(engines)
        else:
            row.is_first_load, row.was_ready = False, True
            self.send_models()

    # the admin API

    async def list_models(self) -> list[ModelRow]:
        return [row.describe(self.counters) for row in self.rows.values()]

    async def load(self, name: str, changes: Mapping[str, Any] | None = None) -> ModelRow:
        if changes is not None and changes.get("source") == name:
            name = get_public_name(name)
        async with self._lock_row(name, changes) as (row, is_new):
            try:
                if is_new:
                    row.is_first_load = False
                    self.send_models()
                await self._load(row)
            except BaseException:
                if is_new:
                    del self.rows[row.name]
                    self.send_models()
                raise
        return row.describe(self.counters)

    async def unload(self, name: str) -> ModelRow:
        async with self._lock_row(name) as (row, _):
            await self._unload(row)
        return row.describe(self.counters)

    async def reload(self, name: str, changes: Mapping[str, Any]) -> ModelRow:
        async with self._lock_row(name) as (row, _):
            await self._replace(row, change_entry(row.entry, changes, self.options))
        return row.describe(self.counters)

    @asynccontextmanager
    async def _lock_row(
        self, name: str, changes: Mapping[str, Any] | None = None
    ) -> AsyncIterator[tuple[TableRow, bool]]:
        """Lock a row for one change and return it, and whether it is new: with `changes`, it is added if need be.

        A row that was removed while this call waited for its lock is no part of the table: what would be loaded into
        it, no request could reach and nobody could unload.
        """
        while True:
            is_new = changes is not None and name not in self.rows
            row = self._add_row(name, changes or {}) if is_new else self._get_row(name)
            if changes and not is_new:
                check_same(row.entry, changes, self.options)
            async with row.lock:
                if self.rows.get(row.name) is row:
                    yield row, is_new
                    return

    def _get_row(self, name: str) -> TableRow:
        for row in self.rows.values():
            if name in (*row.entry.names, row.entry.source):
                return row
        raise UnknownModel(f"The model `{name}` does not exist. Available: {', '.join(self.rows)}", param="name")

    def _add_row(self, name: str, changes: Mapping[str, Any]) -> TableRow:
        """Add a row once its source has been resolved and its options have been checked."""
        entry = parse_entry({**changes, "name": name, "load": "demand"}, self.options)
        check_unique_names([*(row.entry for row in self.rows.values()), entry])
        row = self.rows[entry.name] = TableRow(entry)
        return row

    # changes of one row, under its lock

    async def _load(self, row: TableRow) -> None:
        if row.engines is not None and row.engines.status != "failed":
            await asyncio.shield(row.engines.loaded)
            return
        await self._replace(row, row.entry, may_share=True)

    async def _replace(self, row: TableRow, entry: ModelEntry, *, may_share: bool = False) -> None:
        """Start engines for an entry, let the row use them when they are ready, and end those that it used."""
        self._check_running()
        old = row.engines
        new = self._find_shared(entry) if may_share else None
        if new is None:
            if old is None:
                new = await self.memory.start_in_budget(row, entry)
            else:
                new = self.start_engines(entry, list_handed_over(old, entry))
        if old is None:
            row.engines = new
            row.set_error("")
            self.send_models()
        try:
            await asyncio.shield(new.loaded)
        except BaseException as error:
            if row.engines is new:
                row.engines = None
                is_cancelled = isinstance(error, asyncio.CancelledError)
                row.set_error("" if is_cancelled else str(error) or type(error).__name__)
                self.send_models()
                if row.was_ready and not is_cancelled:
                    self._run(self._allow_load(row, row.failed_at))
            await self._stop_if_unused(new)
            raise
        if old is not None and old is not new and old.entry.source == entry.source:
            await new.follow(old.requested_adapters)
        row.entry, row.engines, row.is_first_load, row.was_ready = entry, new, False, True
        row.set_error("")
        self.send_models()
        logger.info("the model %s is ready", row.name)
        if old is not None and old is not new:
            await self._stop_if_unused(old)

    async def _allow_load(self, row: TableRow, failed_at: float) -> None:
        """Let the next request load a model again that could be loaded before: what it lacked may be back."""
        await asyncio.sleep(MAX_RESTART_DELAY_S)
        if row.error and row.failed_at == failed_at:
            row.may_load_again = True
            self.send_models()

    async def unload_row(self, row: TableRow) -> None:
        async with row.lock:
            await self._unload(row)

    async def _unload(self, row: TableRow) -> None:
        engines, row.engines = row.engines, None
        row.is_required, row.is_first_load = False, False
        row.set_error("")
        if engines is None:
            self.send_models()
            return
        row.is_unloading = True
        self.send_models()
        try:
            await self._stop_if_unused(engines)
        finally:
            row.is_unloading = False
            self.send_models()
        logger.info("the model %s is unloaded", row.name)

    # engines

    def _check_running(self) -> None:
        if self._is_stopping:
            raise NotReady("the server is shutting down; retry on another instance")

    def _find_shared(self, entry: ModelEntry) -> EngineSet | None:
        for engines in self.sets:
            if not engines.is_stopping and engines.status != "failed" and engines.entry.shares_engines(entry):
                return engines
        return None

    def start_engines(self, entry: ModelEntry, adapters: Mapping[str, str] | None = None) -> EngineSet:
        """Start the engine processes of an entry, which load these adapters, too."""
        plans = plan_replicas(entry.config)
        name = entry.name if len(self.rows) > 1 else ""
        children = []
        for index, plan in enumerate(plans):
            config = encode_engine_config(plan.config)
            init = EngineInit(self.settings, config, dict(adapters or {}), cpus=plan.cpus, num_threads=plan.num_threads)
            label = f"{name or 'the model'}, replica {index}" if len(plans) > 1 else name
            children.append(
                EngineChild(next(self._engine_ids), init, entry.config.step_timeout_s, self, self.launcher, label)
            )
        engines = EngineSet(entry, children, self._allocate_slot(), adapters)
        self.sets.append(engines)
        for child in children:
            child.start()
        return engines

    def _allocate_slot(self) -> int:
        used = {engines.slot for engines in self.sets}
        slot = next((slot for slot in range(NUM_SLOTS) if slot not in used), None)
        if slot is None:
            raise BadRequest(f"{NUM_SLOTS} models are loaded, which is the maximum; unload one first")
        self.counters.clear_slot(slot)
        return slot

    async def _stop_if_unused(self, engines: EngineSet) -> None:
        """End the engine processes when their last requests are answered, unless another row uses them."""
        if engines.is_stopping or any(row.engines is engines for row in self.rows.values()):
            return
        engines.is_stopping = True
        started_at = time.monotonic()
        try:
            releases = [self.front_ends.release_engine(engine_id) for engine_id in engines.engine_ids]
            await asyncio.wait_for(asyncio.gather(*releases), DRAIN_TIMEOUT_S)
        except TimeoutError:
            waited_s = time.monotonic() - started_at
            logger.warning("requests to %s did not finish within %.0f s and fail", engines.entry.name, waited_s)
        except Exception:  # a defect: engines that nobody uses must not stay
            logger.exception("the engines of %s could not be released and end now", engines.entry.name)
        await engines.stop()
        self.sets.remove(engines)
        for engine_id in engines.engine_ids:
            self.front_ends.forget_engine(engine_id)

    async def change_adapter(self, engine_id: int, name: str, path: str | None, in_place: bool) -> None:
        """Load an adapter at all replicas of the model of an engine, or unload it (`path` None).

        A client that disconnects does not stop it: the replicas would differ.
        """
        engines = next((engines for engines in self.sets if engine_id in engines.engine_ids), None)
        if engines is None:
            raise make_exited_error()
        change = asyncio.get_running_loop().create_task(engines.change_adapter(name, path, in_place))
        self.tasks.add(change)
        change.add_done_callback(self.tasks.discard)
        await asyncio.shield(change)

    def send_models(self) -> None:
        """Tell the front-ends the state of all models."""
        self.front_ends.set_models(ModelStates([row.make_state() for row in self.rows.values()]))

    def find_child(self, engine_id: int) -> EngineChild | None:
        children = [child for engines in self.sets for child in engines.children]
        return next((child for child in children if child.engine_id == engine_id), None)

    def find_name(self, engine_id: int) -> str:
        """Return the name of the model of an engine, for metrics."""
        names = [self.find_set_name(engines) for engines in self.sets if engine_id in engines.engine_ids]
        return names[0] if names else next(iter(self.rows))

    def find_set_name(self, engines: EngineSet) -> str:
        return next((row.name for row in self.rows.values() if row.engines is engines), engines.entry.name)

    # calls of EngineChild

    def on_engine_started(self, child: EngineChild) -> None:
        self.front_ends.connect_engine(child.engine_id)

    def on_engine_ready(self, child: EngineChild, model_info: bytes) -> None:
        engines = self._find_set(child)
        if child.init.engine_number or len(engines.children) > 1:
            again = " again" if child.init.engine_number else ""
            logger.info("the engine%s is ready%s (process %d)", child.name, again, child.pid)
        engines.on_ready(model_info)
        self.send_models()

    def on_engine_exited(self, exited: EngineExited) -> None:
        self.front_ends.report_exit(exited)

    def on_engine_status(self, child: EngineChild, reason: str) -> None:
        self._find_set(child).report_speed(self.counters)
        self.front_ends.set_engine_state(EngineState(child.engine_id, child.status, reason))
        if child.status != "ready":
            self.send_models()  # with the reason, and since when

    def on_engine_speed(self, child: EngineChild) -> None:
        """Called several times a second while the process serves."""
        self._find_set(child).report_speed(self.counters, child.late_s)

    def on_engine_failed(self, child: EngineChild, error: Exception) -> None:
        """Called once when no engine could be started at all; one that was ready once is started for ever."""
        self._find_set(child).on_failed(error)

    def _find_set(self, child: EngineChild) -> EngineSet:
        return next(engines for engines in self.sets if child in engines.children)


def list_handed_over(engines: EngineSet, entry: ModelEntry) -> dict[str, str]:
    """Return the adapters that requests have loaded, path by name, if an entry has the same source as the engines."""
    return engines.requested_adapters if entry.source == engines.entry.source else {}

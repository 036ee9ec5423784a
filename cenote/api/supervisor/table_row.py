"""TableRow: one model of the running server, with the engines that serve it."""

from __future__ import annotations

import asyncio
import time

from cenote.api.admission.admission_metrics import count_queued, measure_idle_s
from cenote.api.admission.counters import Counters
from cenote.api.admission.engine_speed import EngineSpeed
from cenote.api.model_row import ModelRow, describe_model_info
from cenote.api.supervisor.engine_set import EngineSet
from cenote.api.wire.control_messages import ModelState
from cenote.config.model_table import ModelEntry
from cenote.protocol.engine import ModelStatus


class TableRow:
    def __init__(self, entry: ModelEntry) -> None:
        self.entry = entry
        self.engines: EngineSet | None = None
        self.is_required = entry.load == "start"  # the server is not ready without it
        self.is_first_load = self.is_required
        self.is_unloading = False
        self.was_ready = False  # at any time
        self.error = ""  # why it could not be loaded
        self.failed_at = 0.0  # Unix time
        self.may_load_again = False  # for the next request, although it could not be loaded
        self.lock = asyncio.Lock()  # one change at a time

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def status(self) -> ModelStatus:
        if self.is_unloading:
            return "unloading"
        if self.engines is None:
            return "failed" if self.error and not self.may_load_again else "unloaded"
        return self.engines.status

    @property
    def outage(self) -> tuple[str, float]:
        """Why the model does not answer, and since when as Unix time; "" and 0.0 if nothing has failed."""
        if self.error:
            return self.error, self.failed_at
        return ("", 0.0) if self.engines is None else self.engines.outage

    def set_error(self, error: str) -> None:
        """Record why the model could not be loaded; "": it was."""
        self.error, self.failed_at, self.may_load_again = error, time.time(), False

    def make_state(self) -> ModelState:
        """Return what front-ends need to know."""
        entry, engines = self.entry, self.engines
        reason, since = self.outage
        return ModelState(
            entry.name,
            entry.aliases,
            entry.source,
            entry.accepts_source_names,
            self.status,
            reason,
            self.is_required,
            self.is_first_load,
            () if engines is None else engines.engine_ids,
            0 if engines is None else engines.slot,
            b"" if engines is None else engines.model_info,
            since,
        )

    def measure_idle_s(self, counters: Counters) -> float:
        """Return the seconds without requests since the model is loaded; 0.0 if it is not."""
        if self.engines is None:
            return 0.0
        return measure_idle_s(counters, self.engines.slot, self.engines.started_at)

    def describe(self, counters: Counters) -> ModelRow:
        """Return the row of the admin API."""
        entry, engines = self.entry, self.engines
        reason, since = self.outage
        row = ModelRow(
            name=entry.name,
            aliases=entry.aliases,
            source=entry.source,
            state=self.status,
            replicas=entry.replicas,
            pinned=entry.pinned,
            keep_alive_s=entry.keep_alive_s,
            error=reason or None,
            since=since or None,
            **describe_model_info(None if engines is None else engines.decode_model_info()),
        )
        if engines is not None:
            row.memory_bytes = engines.measure_memory()
            row.queued_tokens = round(sum(count_queued(counters, engines.slot)))
            row.tokens_per_second = round(EngineSpeed.read(counters, engines.slot).tokens_per_s, 1)
            row.idle_s = round(self.measure_idle_s(counters), 3)
        return row

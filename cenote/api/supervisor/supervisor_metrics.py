"""Metrics of the whole server: HTTP responses of all front-ends, engine processes, admission of each model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cenote.api.admission.admission_metrics import collect_model_metrics
from cenote.api.server_metrics import MODEL_LABEL, HttpMetrics
from cenote.utils.metrics import MetricFamily, add_label, merge_families

if TYPE_CHECKING:
    from cenote.api.supervisor.engine_set import EngineSet
    from cenote.api.supervisor.model_manager import ModelManager
    from cenote.api.wire.control_messages import ReplayStats


# in the order of the fields of ReplayStats
REPLAY_COUNTERS = (
    ("cenote_requests_replayed_total", "Requests sent again because an engine process or a link to it was lost."),
    (
        "cenote_requests_quarantined_total",
        "Requests with inputs that were on the device when an engine process died, and then ran alone.",
    ),
    (
        "cenote_poison_inputs_total",
        "Inputs refused because the engine process died twice while it computed them.",
    ),
)


class SupervisorMetrics(HttpMetrics):
    """Implement ServerMetrics for the front-ends of a supervisor."""

    def __init__(self, models: ModelManager) -> None:
        super().__init__(models.counters)
        self.models = models
        self._replay_counters = [
            self.registry.counter(name, help_text, MODEL_LABEL) for name, help_text in REPLAY_COUNTERS
        ]
        self.registry.gauge_by_label(
            "cenote_model_down_seconds",
            "Seconds since the model stopped answering because its engine or its load failed; 0 if nothing has failed.",
            MODEL_LABEL,
            self._measure_outages,
        )

    def _measure_outages(self) -> dict[str, float]:
        starts = {name: row.outage[1] for name, row in self.models.rows.items()}
        return {name: max(0.0, time.time() - since) if since else 0.0 for name, since in starts.items()}

    def observe_replay(self, stats: ReplayStats) -> None:
        counts = stats.num_replayed, stats.num_quarantined, stats.num_poison
        self._add_replay(self.models.find_name(stats.engine_id), counts)

    async def collect(self) -> list[MetricFamily]:
        for name in self.models.rows:
            self._add_replay(name, (0, 0, 0))  # exposed as 0 from the start
        parts = await asyncio.gather(*map(self._collect_set, self.models.sets))
        names = list(self.models.rows)
        families = [family for part in parts for family in part]
        return merge_families([*families, *self.snapshot(names[0] if len(names) == 1 else None)])

    def _add_replay(self, name: str, counts: Sequence[int]) -> None:
        for counter, count in zip(self._replay_counters, counts, strict=True):
            counter(name, by=count)

    async def _collect_set(self, engines: EngineSet) -> list[MetricFamily]:
        name = self.models.find_set_name(engines)
        families = [
            *await engines.collect_metrics(),
            *collect_model_metrics(self.counters, engines.slot),
        ]
        return [add_label(family, MODEL_LABEL, name) for family in families]

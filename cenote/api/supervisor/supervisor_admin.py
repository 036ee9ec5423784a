"""The calls of front-ends that the supervisor answers: administration of its models, and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cenote.api.supervisor.model_manager import ModelManager
from cenote.api.supervisor.supervisor_metrics import SupervisorMetrics
from cenote.api.wire.control_messages import (
    AdminCall,
    ChangeAdapters,
    ListModels,
    LoadModel,
    ModelRows,
    ReloadModel,
    UnloadModel,
)
from cenote.api.wire.messages import Done, Message, MetricsCall, MetricsResponse, from_json

logger = logging.getLogger("cenote")


class SupervisorAdmin:
    def __init__(self, models: ModelManager, metrics: SupervisorMetrics, begin_shutdown: Callable[[], None]) -> None:
        self.models = models
        self.metrics = metrics
        self.begin_shutdown = begin_shutdown

    async def answer(self, call: AdminCall | MetricsCall) -> Message:
        models = self.models
        if isinstance(call, MetricsCall):
            return MetricsResponse(await self.metrics.collect())
        if isinstance(call, ListModels):
            return ModelRows(await models.list_models())
        if isinstance(call, LoadModel):
            return ModelRows([await models.load(call.name, None if call.changes is None else from_json(call.changes))])
        if isinstance(call, UnloadModel):
            return ModelRows([await models.unload(call.name)])
        if isinstance(call, ReloadModel):
            return ModelRows([await models.reload(call.name, from_json(call.changes))])
        if isinstance(call, ChangeAdapters):
            await models.change_adapter(call.engine_id, call.name, call.path, call.in_place)
        else:
            logger.info("shutting down: an admin has asked for it")
            self.begin_shutdown()
        return Done()

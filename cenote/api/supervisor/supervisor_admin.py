"""The admin API in the supervisor: calls of its own front-end, and those that front-end processes forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from cenote.api.model_admin import ModelRow
from cenote.api.supervisor.model_manager import ModelManager
from cenote.api.wire.codec_errors import encode_error
from cenote.api.wire.codec_requests import from_json, to_json
from cenote.api.wire.control_messages import AdminCall, AdminResponse
from cenote.errors import PoolingError

logger = logging.getLogger("cenote")


class SupervisorAdmin:
    """Implement ModelAdmin, and the changes of adapters."""

    def __init__(self, models: ModelManager, begin_shutdown: Callable[[], None]) -> None:
        self.models = models
        self.begin_shutdown = begin_shutdown

    async def list_models(self) -> list[ModelRow]:
        return await self.models.list_models()

    async def load(self, name: str, changes: Mapping[str, Any] | None = None) -> ModelRow:
        return await self.models.load(name, changes)

    async def unload(self, name: str) -> ModelRow:
        return await self.models.unload(name)

    async def reload(self, name: str, changes: Mapping[str, Any]) -> ModelRow:
        return await self.models.reload(name, changes)

    async def change_adapter(self, engine_id: int, name: str, path: str | None, in_place: bool) -> None:
        await self.models.change_adapter(engine_id, name, path, in_place)

    async def shutdown(self) -> None:
        logger.info("shutting down: an admin has asked for it")
        self.begin_shutdown()

    async def answer(self, call: AdminCall) -> AdminResponse:
        """Answer a call of a front-end process."""
        try:
            result = await getattr(self, call.method)(**from_json(call.arguments))
        except Exception as error:
            if not isinstance(error, PoolingError):
                logger.exception("the admin call %s failed", call.method)
            return AdminResponse(call.call_id, b"", encode_error(error))
        return AdminResponse(call.call_id, to_json(result))

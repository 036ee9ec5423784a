"""Admin calls of a front-end process: the supervisor, which owns the models, answers them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from cenote.api.model_admin import ModelRow
from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_errors import decode_error
from cenote.api.wire.codec_requests import from_json, to_json
from cenote.api.wire.control_messages import AdminCall, AdminResponse, SupervisorToFrontEnd


class ForwardedAdmin:
    """Implement ModelAdmin over the channel to the supervisor, which also changes adapters."""

    def __init__(self, channel: Channel[SupervisorToFrontEnd]) -> None:
        self._channel = channel
        self._call_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[bytes]] = {}

    async def list_models(self) -> list[ModelRow]:
        return from_json(await self._call("list_models", {}), type=list[ModelRow])

    async def load(self, name: str, changes: Mapping[str, Any] | None = None) -> ModelRow:
        return await self._call_for_row("load", {"name": name, "changes": changes})

    async def unload(self, name: str) -> ModelRow:
        return await self._call_for_row("unload", {"name": name})

    async def reload(self, name: str, changes: Mapping[str, Any]) -> ModelRow:
        return await self._call_for_row("reload", {"name": name, "changes": changes})

    async def change_adapter(self, engine_id: int, name: str, path: str | None, in_place: bool) -> None:
        await self._call("change_adapter", {"engine_id": engine_id, "name": name, "path": path, "in_place": in_place})

    async def shutdown(self) -> None:
        await self._call("shutdown", {})

    def on_response(self, response: AdminResponse) -> None:
        future = self._pending.get(response.call_id)
        if future is None or future.done():
            return
        if response.error is None:
            future.set_result(response.result)
        else:
            future.set_exception(decode_error(response.error))

    async def _call_for_row(self, method: str, arguments: Mapping[str, Any]) -> ModelRow:
        return from_json(await self._call(method, arguments), type=ModelRow)

    async def _call(self, method: str, arguments: Mapping[str, Any]) -> bytes:
        call_id = next(self._call_ids)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[call_id] = future
        self._channel.send(AdminCall(call_id, method, to_json(arguments)))
        try:
            return await future
        finally:
            del self._pending[call_id]

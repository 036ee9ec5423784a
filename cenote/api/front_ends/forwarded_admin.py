"""Admin calls of a front-end: the supervisor, which owns the models, answers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.api.model_admin import ModelRow
from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import (
    ChangeAdapters,
    ListModels,
    LoadModel,
    ModelRows,
    ReloadModel,
    ShutDown,
    SupervisorToFrontEnd,
    UnloadModel,
)
from cenote.api.wire.messages import Call, to_json


class ForwardedAdmin:
    """Implement ModelAdmin over the channel to the supervisor, which also changes adapters."""

    def __init__(self, channel: Channel[SupervisorToFrontEnd]) -> None:
        self._channel = channel

    async def list_models(self) -> list[ModelRow]:
        return (await self._channel.call(ListModels())).rows

    async def load(self, name: str, changes: Mapping[str, Any] | None = None) -> ModelRow:
        return await self._call_for_row(LoadModel(name, None if changes is None else to_json(changes)))

    async def unload(self, name: str) -> ModelRow:
        return await self._call_for_row(UnloadModel(name))

    async def reload(self, name: str, changes: Mapping[str, Any]) -> ModelRow:
        return await self._call_for_row(ReloadModel(name, to_json(changes)))

    async def change_adapter(self, engine_id: int, name: str, path: str | None, in_place: bool) -> None:
        await self._channel.call(ChangeAdapters(engine_id, name, path, in_place))

    async def shutdown(self) -> None:
        await self._channel.call(ShutDown())

    async def _call_for_row(self, call: Call[ModelRows]) -> ModelRow:
        (row,) = (await self._channel.call(call)).rows
        return row

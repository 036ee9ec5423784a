"""ModelAdmin: what the admin routes do with the models of a running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from cenote.errors import Unsupported
from cenote.protocol.engine import ModelStatus
from cenote.protocol.model_info import ModelInfo

if TYPE_CHECKING:
    from cenote.api.served_models import ServedModels


class ModelRow(msgspec.Struct, kw_only=True):
    """One model of `GET /admin/models`; what is known only of loaded models is null or empty otherwise."""

    name: str
    aliases: Sequence[str] = ()
    source: str
    state: ModelStatus
    tasks: Sequence[str] = ()
    dtype: str | None = None
    device: str | None = None
    memory_bytes: int | None = None  # of its engine processes, and of the GPU
    max_model_len: int | None = None
    pooling: str | None = None
    prompts: Sequence[str] = ()
    queued_tokens: int = 0
    tokens_per_second: float = 0.0  # as measured while there was work
    replicas: int = 1
    pinned: bool = False
    keep_alive_s: float | None = None
    fingerprint: str | None = None
    idle_s: float | None = None  # since the last request
    error: str | None = None  # why it does not answer, or could not be loaded
    since: float | None = None  # Unix time since when


class ModelAdmin(Protocol):
    async def list_models(self) -> list[ModelRow]: ...

    async def load(self, name: str, changes: Mapping[str, Any] | None = None) -> ModelRow:
        """Load a model of the table, or, with `changes`, add it to the table before; return when it is ready."""
        ...

    async def unload(self, name: str) -> ModelRow:
        """Finish the requests of a model and end its engine processes; the model stays in the table."""
        ...

    async def reload(self, name: str, changes: Mapping[str, Any]) -> ModelRow:
        """Replace the engine processes of a model by new ones, perhaps of another source, without a pause."""
        ...

    async def shutdown(self) -> None:
        """Stop the server as SIGTERM does."""
        ...


def describe_model_info(model_info: ModelInfo | None) -> dict[str, Any]:
    """Return the fields of a row that a loaded model tells."""
    if model_info is None:
        return {}
    return {
        "tasks": model_info.tasks,
        "dtype": model_info.dtype,
        "device": model_info.device,
        "max_model_len": model_info.max_model_len,
        "pooling": model_info.pooling,
        "prompts": sorted({*model_info.prompts, *model_info.instructions}),
        "fingerprint": model_info.fingerprint or None,
    }


class LocalModelAdmin:
    """The model of a server whose engine is in its own process: it can be listed, and nothing else."""

    def __init__(self, models: ServedModels) -> None:
        self.models = models

    async def list_models(self) -> list[ModelRow]:
        return [
            ModelRow(
                name=model.name,
                aliases=model.aliases,
                source=model.source,
                state=model.status,
                error=model.reason or None,
                since=model.since or None,
                **describe_model_info(model.model_info),
            )
            for model in self.models
        ]

    async def load(self, name: str, changes: Mapping[str, Any] | None = None) -> ModelRow:
        raise self._make_error()

    async def unload(self, name: str) -> ModelRow:
        raise self._make_error()

    async def reload(self, name: str, changes: Mapping[str, Any]) -> ModelRow:
        raise self._make_error()

    async def shutdown(self) -> None:
        raise self._make_error()

    def _make_error(self) -> Unsupported:
        return Unsupported("the engine runs in the process of the server; start it without --in-process-engine")

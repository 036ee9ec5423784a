"""ModelRow: a model of a running server as the admin routes show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cenote.protocol.engine import ModelStatus
from cenote.protocol.model_info import ModelInfo


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

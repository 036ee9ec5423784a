"""EngineConfig as JSON, for the processes that load the model."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import msgspec

from cenote.config.engine import EngineConfig
from cenote.config.pooler import PoolerConfig
from cenote.errors import BadRequest


def encode_engine_config(config: EngineConfig) -> bytes:
    if callable(config.hf_overrides):
        raise BadRequest("hf_overrides as a function cannot be sent to another process; pass a mapping")
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    return msgspec.json.encode({**values, "pooler_config": asdict(config.pooler_config)})


def decode_engine_config(encoded: bytes) -> EngineConfig:
    values: dict[str, Any] = msgspec.json.decode(encoded)
    values["pooler_config"] = PoolerConfig(**values["pooler_config"])
    for name, item in values.items():
        if isinstance(item, list):  # JSON has no tuples, and no option is a list
            values[name] = tuple(item)
    return EngineConfig(**values)

"""Options of the engine, the pooler and the HTTP server, each declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cenote.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from cenote.config.engine import EngineConfig
    from cenote.config.pooler import PoolerConfig
    from cenote.config.server import ServerConfig
    from cenote.config.vllm_config import VllmConfig

__all__ = ["EngineConfig", "PoolerConfig", "ServerConfig", "VllmConfig"]

__getattr__ = lazy_names(
    __name__,
    {
        "EngineConfig": "cenote.config.engine",
        "PoolerConfig": "cenote.config.pooler",
        "ServerConfig": "cenote.config.server",
        "VllmConfig": "cenote.config.vllm_config",
    },
)

"""Options of the engine, the pooler and the HTTP server, each declared once."""

from cenote.config.engine import EngineConfig
from cenote.config.pooler import PoolerConfig
from cenote.config.server import ServerConfig
from cenote.config.vllm_config import VllmConfig

__all__ = ["EngineConfig", "PoolerConfig", "ServerConfig", "VllmConfig"]

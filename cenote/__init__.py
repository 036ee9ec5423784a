"""Cenote: an inference engine and HTTP server for pooling models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cenote.config.pooler import PoolerConfig
from cenote.errors import BadRequest, EngineStopped, InputTooLong, LoadError, PoolingError, Unsupported
from cenote.protocol.params import LoRARequest, PoolingParams
from cenote.protocol.prompts import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt
from cenote.version import __version__

if TYPE_CHECKING:
    from cenote.engine.arg_utils import EngineArgs
    from cenote.llm import LLM
    from cenote.outputs import (
        ChunkEmbeddingOutput,
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        EntitiesOutput,
        EntitiesRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
        SparseEmbeddingOutput,
        SparseEmbeddingRequestOutput,
    )

__all__ = [
    "LLM",
    "BadRequest",
    "ChunkEmbeddingOutput",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EmbedsPrompt",
    "EngineArgs",
    "EngineStopped",
    "EntitiesOutput",
    "EntitiesRequestOutput",
    "InputTooLong",
    "LoRARequest",
    "LoadError",
    "PoolerConfig",
    "PoolingError",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "ScoringOutput",
    "ScoringRequestOutput",
    "SparseEmbeddingOutput",
    "SparseEmbeddingRequestOutput",
    "TextPrompt",
    "TokensPrompt",
    "Unsupported",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # imported on use: importing torch takes a second, which `cenote --help` and HTTP front-ends do not need
    if name == "LLM":
        return import_module("cenote.llm").LLM
    if name == "EngineArgs":
        return import_module("cenote.engine.arg_utils").EngineArgs
    if name in __all__:
        return getattr(import_module("cenote.outputs"), name)
    raise AttributeError(f"module 'cenote' has no attribute {name!r}")

"""Cenote: an inference engine and HTTP server for pooling models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cenote.utils.lazy_names import lazy_names
from cenote.version import __version__

if TYPE_CHECKING:
    from cenote.config.pooler import PoolerConfig
    from cenote.engine.arg_utils import EngineArgs
    from cenote.errors import BadRequest, EngineStopped, InputTooLong, LoadError, PoolingError, Unsupported
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
    from cenote.protocol.params import LoRARequest, PoolingParams
    from cenote.protocol.prompts import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt

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

ERRORS = ("BadRequest", "EngineStopped", "InputTooLong", "LoadError", "PoolingError", "Unsupported")
PROMPTS = ("EmbedsPrompt", "PromptType", "TextPrompt", "TokensPrompt")

# every process of a server and `cenote --help` import this package, and need hardly any of its names
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(__all__, "cenote.outputs"),
        **dict.fromkeys(ERRORS, "cenote.errors"),
        **dict.fromkeys(PROMPTS, "cenote.protocol.prompts"),
        **dict.fromkeys(("LoRARequest", "PoolingParams"), "cenote.protocol.params"),
        "EngineArgs": "cenote.engine.arg_utils",
        "LLM": "cenote.llm",
        "PoolerConfig": "cenote.config.pooler",
    },
)

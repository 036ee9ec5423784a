"""jina-embeddings-v5: Qwen3 or EuroBERT with one LoRA adapter per task, in subfolders of the checkpoint."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig
from cenote.models.eurobert import eurobert
from cenote.models.qwen import qwen3


def jina_v5(config: HFConfig) -> Architecture:
    base = qwen3(config) if config.get("is_decoder", True) else eurobert(config)
    return replace(base, pooling="LAST", default_adapters=(*config.get("jina_task", "").split(), "retrieval"))

"""Granite: Llama with multipliers for embeddings, attention scores and residuals."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig
from cenote.models.llama import llama


def granite(config: HFConfig) -> Architecture:
    base = llama(config)
    spec = replace(
        base.backbone,
        embed_scale=config.get("embedding_multiplier", 1.0),
        scale=config.get("attention_multiplier", 1.0),
        residual_scale=config.get("residual_multiplier", 1.0),
    )
    return replace(base, backbone=spec)

"""Tiny Qwen2-VL checkpoints in the files of ColQwen2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import ColQwen2Config, ColQwen2ForRetrieval, Qwen2VLForConditionalGeneration

from tests.models.qwen_vl import save_qwen_vl
from tests.tiny import randomize

TOWER = {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}


def save_colqwen2_hf(folder: Path) -> Any:
    """Save a model in the layout of Transformers (vidore/colqwen2-v1.0-hf)."""
    whole = save_qwen_vl(folder, Qwen2VLForConditionalGeneration, TOWER)
    config = ColQwen2Config(vlm_config=whole.config.to_dict(), embedding_dim=16)
    model: Any = ColQwen2ForRetrieval(config).eval().requires_grad_(False)
    randomize(model)
    model.save_pretrained(folder)
    return model

"""Models that read images, published as adapters or with custom code."""

from __future__ import annotations

from pathlib import Path

from tests.layouts.registry import builder
from tests.models import col_models, gme, jina_clip, jina_v4, nomic_vision


@builder
def colqwen2_adapter(folder: Path) -> None:
    """vidore/colqwen2-v1.0: an adapter; its base model lies beside it."""
    col_models.save_colqwen(folder)


@builder
def colqwen2_5_adapter(folder: Path) -> None:
    col_models.save_colqwen(folder, "2.5")


@builder
def colnomic_adapter(folder: Path) -> None:
    col_models.save_colnomic(folder)


@builder
def nomic_embed_multimodal(folder: Path) -> None:
    """nomic-ai/nomic-embed-multimodal-*: one vector per input, of a class that is not supported."""
    col_models.save_colnomic(folder)
    mapping = {"base_model_class": "BiQwen2_5", "parent_library": "colpali_engine.models"}
    col_models.write_adapter_config(folder, "Qwen/Qwen2.5-VL-3B-Instruct", task_type=None, auto_mapping=mapping)


@builder
def colpali_adapter(folder: Path) -> None:
    col_models.save_colpali(folder)


@builder
def colsmol_adapter(folder: Path) -> None:
    col_models.save_colsmol(folder)


@builder
def colqwen2_merged(folder: Path) -> None:
    col_models.save_colqwen_base(folder)


@builder
def colpali_merged(folder: Path) -> None:
    col_models.save_colpali_base(folder)


@builder
def jina_embeddings_v4(folder: Path) -> None:
    jina_v4.save_jina_v4(folder)


@builder
def nomic_embed_vision(folder: Path) -> None:
    """nomic-ai/nomic-embed-vision-v1 and v1.5: images only, without a tokenizer."""
    nomic_vision.save_nomic_vision(folder)


@builder
def jina_clip_v1(folder: Path) -> None:
    jina_clip.save_jina_clip(folder, 1)


@builder
def jina_clip_v2(folder: Path) -> None:
    jina_clip.save_jina_clip(folder, 2)


@builder
def gme_qwen2_vl(folder: Path) -> None:
    gme.save_gme(folder)

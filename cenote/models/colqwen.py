"""ColQwen2 and ColQwen2.5 as their authors publish them: merged, or as the base model of their adapters.

Queries and page images get the prompts of the authors' processor; the format of Transformers is in qwen2_vl.py.
"""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, QueryFormat, StoredProjection
from cenote.models.image_spec import with_page_prompt
from cenote.models.qwen2_5_vl import qwen2_5_vl
from cenote.models.qwen2_vl import qwen2_vl

NUM_QUERY_SUFFIX_TOKENS = 10
PAGE_START, PAGE_TEXT, PAGE_END = "<|im_start|>user\n", "Describe the image.", "<|im_end|><|endoftext|>"


def colqwen2(config: HFConfig) -> Architecture:
    return _with_projection(qwen2_vl(config))


def colqwen2_5(config: HFConfig) -> Architecture:
    return _with_projection(qwen2_5_vl(config))


def _with_projection(base: Architecture) -> Architecture:
    """Add the projection and the prompts."""
    assert base.vision is not None
    images = with_page_prompt(base.vision.image_spec, PAGE_START, PAGE_TEXT, PAGE_END)
    return replace(
        base,
        projection=StoredProjection(weights=("custom_text_proj",), alternative_weights=(("model.custom_text_proj",),)),
        query_format=QueryFormat(prompt="Query: ", suffix_tokens=("<|endoftext|>",) * NUM_QUERY_SUFFIX_TOKENS),
        vision=replace(base.vision, image_spec=images),
    )

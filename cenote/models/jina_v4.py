"""jina-embeddings-v4: Qwen2.5-VL with an adapter for each task; one vector, or a projected vector per token."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, StoredProjection, TaskAdapters
from cenote.models.image_spec import with_page_prompt
from cenote.models.qwen2_5_vl import qwen2_5_vl

TASKS = ("retrieval", "text-matching", "code")
PROMPTS = {"query": "Query: ", "passage": "Passage: "}
PAGE_START, PAGE_TEXT, PAGE_END = "<|im_start|>user\n", "Describe the image.", "<|im_end|>\n"


def jina_v4(config: HFConfig) -> Architecture:
    base = qwen2_5_vl(config)
    assert base.vision is not None
    images = with_page_prompt(base.vision.image_spec, PAGE_START, PAGE_TEXT, PAGE_END)
    return replace(
        base,
        pooling="IMAGE_MEAN",
        token_projection=StoredProjection(weights=("multi_vector_projector",)),
        task_adapters=TaskAdapters(folder="adapters", tasks=tuple(config.get("task_names", TASKS))),
        prompts=PROMPTS,
        default_prompt_name="query",
        unused_weights=(*base.unused_weights, "*lm_head.*"),
        vision=replace(base.vision, image_spec=images),
    )

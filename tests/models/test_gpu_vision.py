"""Models with image inputs give the same embeddings on a GPU as on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

# a GPU machine may lack the packages that create the tiny checkpoints
pytest.importorskip("PIL")
transformers = pytest.importorskip("transformers", minversion="5.0")

from cenote import LLM  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),  # of Transformers, with newer torch
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def qwen3_vl(folder: Path) -> tuple[str, Sequence[Any]]:
    from tests.models.tiny_qwen3_vl import INPUTS, save_tiny_qwen3_vl

    save_tiny_qwen3_vl(folder)
    return "embed", image_prompts(INPUTS)


def qwen3_5(folder: Path) -> tuple[str, Sequence[Any]]:
    from tests.models.qwen3_5 import INPUTS, save

    save(folder, std=0.1)  # with larger weights Transformers itself deviates in bfloat16
    return "embed", image_prompts(INPUTS)


def qwen2_5_vl(folder: Path) -> tuple[str, Sequence[Any]]:
    from tests.models.qwen_vl import TOWER, prompts, save_qwen_vl

    save_qwen_vl(folder, transformers.Qwen2_5_VLForConditionalGeneration, TOWER)
    return "embed", prompts()


def clip(folder: Path) -> tuple[str, Sequence[Any]]:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    from tests.models.two_towers import MIXED, TEXT, VISION, prompt, save

    config = transformers.CLIPConfig(text_config=dict(TEXT), vision_config=VISION | {"image_size": 28})
    processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    save(folder, config, transformers.CLIPModel, processor)
    return "embed", [prompt(item) for item in MIXED]


def siglip(folder: Path) -> tuple[str, Sequence[Any]]:
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    from tests.models.two_towers import MIXED, TEXT, VISION, prompt, save

    config = transformers.SiglipConfig(
        text_config=TEXT | {"projection_size": 40}, vision_config=VISION | {"image_size": 28}
    )
    save(folder, config, transformers.SiglipModel, SiglipImageProcessorPil(size={"height": 28, "width": 28}))
    return "embed", [prompt(item) for item in MIXED]


def siglip2(folder: Path) -> tuple[str, Sequence[Any]]:
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    from tests.models.two_towers import MIXED, TEXT, VISION, prompt, save

    config = transformers.Siglip2Config(
        text_config=TEXT | {"projection_size": 40}, vision_config=VISION | {"num_patches": 16}
    )
    save(folder, config, transformers.Siglip2Model, Siglip2ImageProcessorPil(patch_size=4, max_num_patches=50))
    return "embed", [prompt(item) for item in MIXED]


def colmodernvbert(folder: Path) -> tuple[str, Sequence[Any]]:
    from tests.models.modernvbert import PAGES, SHOWN, WHOLE, save_files
    from tests.tiny import randomize

    config = transformers.ColModernVBertConfig(vlm_config=WHOLE | {"model_type": "modernvbert"}, embedding_dim=16)
    model = transformers.ColModernVBertForRetrieval(config).eval().requires_grad_(False)
    randomize(model, std=0.2)
    model.save_pretrained(folder)
    save_files(folder)
    return "token_embed", ["the cat", *image_prompts([(SHOWN, [page]) for page in PAGES])]


def image_prompts(inputs: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
    return [{"prompt": text, "multi_modal_data": {"image": [*images]}} if images else text for text, images in inputs]


def encode_prompts(folder: Path, task: str, prompts: Sequence[Any], **options: Any) -> list[Tensor]:
    with LLM(str(folder), limit_mm_per_prompt={"image": 4}, **options) as llm:
        outputs = llm.encode(prompts, pooling_task=task, use_tqdm=False)
    return [output.outputs.data.float().reshape(-1, output.outputs.data.shape[-1]) for output in outputs]


@pytest.mark.parametrize("make", [qwen3_vl, qwen3_5, qwen2_5_vl, clip, siglip, siglip2, colmodernvbert])
def test_texts_and_images_have_the_same_vectors_on_a_gpu(make: Any, tmp_path: Path) -> None:
    task, prompts = make(tmp_path)

    host = encode_prompts(tmp_path, task, prompts, device="cpu", dtype="float32")
    exact = encode_prompts(tmp_path, task, prompts, device="cuda", dtype="float32")
    rounded = encode_prompts(tmp_path, task, prompts, device="cuda", dtype="bfloat16")

    for cpu_rows, exact_rows, rounded_rows in zip(host, exact, rounded, strict=True):
        assert_close(exact_rows, cpu_rows, atol=1e-3, rtol=0)
        assert cosine_similarity(rounded_rows, cpu_rows).min() >= 0.99

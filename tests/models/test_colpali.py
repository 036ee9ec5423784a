"""ColPali and PaliGemma equal Transformers on the same checkpoint and page images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    ColPaliForRetrieval,
    PaliGemmaForConditionalGeneration,
)

from cenote import LLM
from cenote.errors import BadRequest
from cenote.protocol.input_types import ContentParts, Conversation
from cenote.protocol.requests import PoolRequest
from tests.factories import LLMFactory
from tests.models.colpali import (
    NUM_PATCHES,
    TEXT,
    VISION_CONFIG,
    config,
    processor,
    save_colpali_hf,
    save_files,
    tiny_tokenizer,
)
from tests.models.modernvbert import make_image
from tests.tiny import change_config, randomize

DEFAULT_PROMPT = "Describe the image."


PAGES = [make_image(80, 60), make_image(33, 120, 1), make_image(56, 56, 2)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ColPaliForRetrieval]:
    folder = tmp_path_factory.mktemp("colpali")
    return folder, save_colpali_hf(folder)


@pytest.fixture(scope="module")
def llm(reference: tuple[Path, ColPaliForRetrieval], open_llm: LLMFactory) -> LLM:
    return open_llm(reference[0])


def vectors(llm: LLM, prompts: Any) -> list[Tensor]:
    return [output.outputs.data for output in llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)]


def expected(model: ColPaliForRetrieval, inputs: Any) -> list[Tensor]:
    inputs.pop("labels", None)
    with torch.inference_mode():
        found = model(**inputs).embeddings
    return [rows[mask.bool()] for rows, mask in zip(found, inputs["attention_mask"], strict=True)]


def shown(image: Image.Image, text: str = DEFAULT_PROMPT) -> dict[str, Any]:
    return {"prompt": f"<image>{text}", "multi_modal_data": {"image": image}}


def test_pages_of_any_size_equal_transformers(llm: LLM, reference: tuple[Path, ColPaliForRetrieval]) -> None:
    inputs = processor()(images=PAGES)
    actual = llm.encode([shown(page) for page in PAGES], pooling_task="token_embed", use_tqdm=False)

    for output, ids, mask in zip(actual, inputs["input_ids"], inputs["attention_mask"], strict=True):
        assert output.prompt_token_ids == ids[mask.bool()].tolist()
    for output, reference_output in zip(actual, expected(reference[1], inputs), strict=True):
        assert_close(output.outputs.data, reference_output, atol=1e-4, rtol=0)


def test_queries_equal_transformers_and_are_not_augmented(
    llm: LLM, reference: tuple[Path, ColPaliForRetrieval]
) -> None:
    queries = ["who live in berlin", "a"]
    actual = vectors(llm, [f"Question: {query}{'<pad>' * 10}\n" for query in queries])

    for vector, query in zip(actual, queries, strict=True):  # one by one: padding would change the shorter one
        inputs = processor()(text=[query])
        assert_close(vector, expected(reference[1], inputs)[0], atol=1e-4, rtol=0)


def test_an_input_gives_the_same_in_a_batch_and_alone(llm: LLM) -> None:
    prompts = [shown(PAGES[0]), "who live in berlin", shown(PAGES[1], "a red bird"), shown(PAGES[0]), shown(PAGES[2])]

    together = vectors(llm, prompts)

    for prompt, found in zip(prompts, together, strict=True):
        assert_close(found, vectors(llm, [prompt])[0], atol=1e-5, rtol=0)
    assert_close(together[0], together[3], atol=0, rtol=0)


def test_a_conversation_a_prompt_and_an_expanded_prompt_give_the_same(llm: LLM) -> None:
    parts = [{"type": "text", "text": DEFAULT_PROMPT}, {"type": "image_pil", "image_pil": PAGES[0]}]
    written = {"prompt": f"<image><bos>{DEFAULT_PROMPT}\n", "multi_modal_data": {"image": PAGES[0]}}
    plain = vectors(llm, [shown(PAGES[0])])[0]

    assert_close(vectors(llm, [written])[0], plain, atol=1e-6, rtol=0)
    for item in (Conversation([{"role": "user", "content": parts}]), ContentParts(parts)):
        (answer,) = llm.engine.pool_sync(PoolRequest(task="token_embed", inputs=[item]))
        assert_close(torch.from_numpy(answer.data), plain, atol=1e-6, rtol=0)


def test_a_query_finds_its_page_by_the_scores_of_transformers(
    llm: LLM, reference: tuple[Path, ColPaliForRetrieval]
) -> None:
    pages = [
        {"content": [{"type": "image_pil", "image_pil": page}, {"type": "text", "text": DEFAULT_PROMPT}]}
        for page in PAGES
    ]
    query = f"Question: the river{'<pad>' * 10}\n"

    actual = [output.outputs.score for output in llm.score(query, pages, use_tqdm=False)]

    reader = processor()
    seen = expected(reference[1], reader(images=PAGES))
    asked = expected(reference[1], reader(text=["the river"]))
    reference_output = [(asked[0] @ page.T).amax(1).sum().item() for page in seen]
    assert actual == pytest.approx(reference_output, abs=1e-3)


def test_the_length_of_a_query_does_not_limit_an_image_and_a_cut_spares_it(llm: LLM) -> None:
    asked = shown(PAGES[0], "the cat is in the city " * 12)
    whole, cut = (
        llm.encode([asked], pooling_task="token_embed", tokenization_kwargs=kwargs, use_tqdm=False)[0]
        for kwargs in ({}, {"truncate_prompt_tokens": 30})
    )

    assert len(whole.prompt_token_ids) == NUM_PATCHES + 1 + 72 + 1
    assert len(cut.prompt_token_ids) <= 30
    assert cut.prompt_token_ids[: NUM_PATCHES + 8] == whole.prompt_token_ids[: NUM_PATCHES + 8]
    assert cut.prompt_token_ids[-1] == whole.prompt_token_ids[-1]


def test_an_image_size_beyond_the_learned_positions_is_refused(llm: LLM) -> None:
    asked = shown(PAGES[0]) | {"mm_processor_kwargs": {"size": {"height": 28, "width": 28}}}

    with pytest.raises(BadRequest, match="becomes 28 x 28 pixels, but this model reads 56 x 56"):
        llm.encode([asked], pooling_task="token_embed", use_tqdm=False)


def test_the_names_and_the_short_config_of_published_files_load_as_well(
    reference: tuple[Path, ColPaliForRetrieval], llm: LLM, tmp_path: Path
) -> None:
    """Rewrite to older weight names and a config with only non-default values."""
    folder = reference[0]
    for file in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    older = {"vlm.vision_tower.": "vlm.vision_tower.vision_model.", "embedding_proj_layer.": "custom_text_proj."}
    tensors = load_file(folder / "model.safetensors")
    for new, old in older.items():
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    tensors["vlm.language_model.lm_head.weight"] = torch.zeros(160, 32)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())["vlm_config"]
    halves = {
        "text_config": {name: written["text_config"][name] for name in TEXT if name != "max_position_embeddings"},
        "vision_config": {name: written["vision_config"][name] for name in VISION_CONFIG},
    }
    halves["text_config"]["model_type"] = "gemma"
    change_config(tmp_path, vlm_config=written | halves)

    with LLM(str(tmp_path), dtype="float32", device="cpu") as published:
        found = vectors(published, [shown(PAGES[1])])[0]
        assert published.model_config.max_model_len == 8192

    assert_close(found, vectors(llm, [shown(PAGES[1])])[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("gemma", ["gemma", "gemma2"])
def test_paligemma_embeds_by_its_last_token(gemma: str, tmp_path: Path) -> None:
    reader = processor()
    model = PaliGemmaForConditionalGeneration(config(model_type=gemma).vlm_config).eval().requires_grad_(False)
    randomize(model, std=0.2)
    model.save_pretrained(tmp_path)
    save_files(tmp_path)
    inputs = reader(images=PAGES[:1])
    inputs.pop("labels")
    with torch.inference_mode():
        last = model.model(**inputs).last_hidden_state[0, -1]

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        (actual,) = llm.embed([shown(PAGES[0])], use_tqdm=False)

    assert_close(torch.tensor(actual.outputs.embedding), last / last.norm(), atol=1e-4, rtol=0)


def test_a_page_needs_no_text(llm: LLM) -> None:
    mark = tiny_tokenizer().token_to_id("<image>")
    alone, token_ids = llm.encode(
        [shown(PAGES[0], ""), {"prompt_token_ids": [mark], "multi_modal_data": {"image": PAGES[0]}}],
        pooling_task="token_embed",
        use_tqdm=False,
    )

    assert_close(alone.outputs.data, token_ids.outputs.data)

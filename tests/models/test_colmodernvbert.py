"""ColModernVBERT and ModernVBERT equal Transformers on the same checkpoint and images (tiled pages)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    ColModernVBertConfig,
    ColModernVBertForRetrieval,
    ModernVBertConfig,
    ModernVBertForMaskedLM,
    ModernVBertModel,
    PreTrainedModel,
)

from cenote import LLM
from cenote.protocol.input_types import ContentParts, Conversation
from cenote.protocol.requests import PoolRequest
from tests.factories import LLMFactory
from tests.models.modernvbert import (
    PAGES,
    SHOWN,
    TEXT,
    VISION_CONFIG,
    WHOLE,
    processor,
    save_files,
    tiny_tokenizer,
)
from tests.tiny import change_config, randomize

Reference = tuple[Path, ColModernVBertForRetrieval]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("colmodernvbert")
    model = ColModernVBertForRetrieval(
        ColModernVBertConfig(vlm_config=WHOLE | {"model_type": "modernvbert"}, embedding_dim=16)
    )
    model.eval().requires_grad_(False)
    randomize(model, std=0.2)
    model.save_pretrained(folder)
    save_files(folder)
    return folder, model


@pytest.fixture(scope="module")
def llm(reference: Reference, open_llm: LLMFactory) -> LLM:
    return open_llm(reference[0])


def vectors(llm: LLM, prompts: Any) -> list[Tensor]:
    return [output.outputs.data for output in llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)]


def expected(model: ColModernVBertForRetrieval, inputs: Any) -> list[Tensor]:
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        found = model(**inputs).embeddings
    return [rows[mask.bool()] for rows, mask in zip(found, inputs["attention_mask"], strict=True)]


def shown(image: Any, text: str = SHOWN) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"image": image}}


def test_pages_of_any_size_equal_transformers(llm: LLM, reference: Reference) -> None:
    inputs = processor(tiny_tokenizer()).process_images(PAGES)
    actual = llm.encode([shown(page) for page in PAGES], pooling_task="token_embed", use_tqdm=False)

    for output, ids, mask in zip(actual, inputs["input_ids"], inputs["attention_mask"], strict=True):
        assert output.prompt_token_ids == ids[mask.bool()].tolist()
    for output, reference_output in zip(actual, expected(reference[1], inputs), strict=True):
        assert_close(output.outputs.data, reference_output, atol=1e-4, rtol=0)


def test_images_alone_and_several_among_words_equal_transformers(llm: LLM, reference: Reference) -> None:
    texts = ["<image>", "the cat <image> and\n<image>the dog"]
    images = [[PAGES[1]], [PAGES[2], PAGES[0]]]

    actual = vectors(llm, [shown(some, text) for some, text in zip(images, texts, strict=True)])

    inputs = processor(tiny_tokenizer())(text=texts, images=images)
    for vector, reference_output in zip(actual, expected(reference[1], inputs), strict=True):
        assert_close(vector, reference_output, atol=1e-4, rtol=0)


def test_queries_equal_transformers_and_are_not_augmented(llm: LLM, reference: Reference) -> None:
    queries = ["who lives in the city?", "a"]
    actual = vectors(llm, [query + "<end_of_utterance>" * 10 for query in queries])

    inputs = processor(tiny_tokenizer()).process_queries(queries)
    for vector, reference_output in zip(actual, expected(reference[1], inputs), strict=True):
        assert_close(vector, reference_output, atol=1e-4, rtol=0)


def test_an_input_gives_the_same_in_a_batch_and_alone(llm: LLM) -> None:
    prompts = [shown(PAGES[0]), "the cat", shown(PAGES[1], "<image>"), shown(PAGES[0]), shown(PAGES[2])]

    together = vectors(llm, prompts)

    for prompt, found in zip(prompts, together, strict=True):
        assert_close(found, vectors(llm, [prompt])[0], atol=1e-5, rtol=0)
    assert_close(together[0], together[3], atol=0, rtol=0)


def test_a_conversation_renders_an_image_as_transformers_does_and_keeps_the_order_of_parts(llm: LLM) -> None:
    image = {"type": "image_pil", "image_pil": PAGES[0]}
    beside, around = ({"type": "text", "text": text} for text in ("Describe the image.", SHOWN))
    plain = vectors(llm, [shown(PAGES[0])])[0]
    bare = vectors(llm, [shown(PAGES[0], "<image>Describe the image.")])[0]
    items = [
        (Conversation([{"role": "user", "content": [image, beside]}]), plain),
        (ContentParts([image, around]), plain),
        (ContentParts([image, beside]), bare),
        (Conversation([{"role": "user", "content": "the cat"}]), vectors(llm, ["the cat"])[0]),
    ]

    for item, wanted in items:
        (answer,) = llm.engine.pool_sync(PoolRequest(task="token_embed", inputs=[item]))
        assert_close(torch.from_numpy(answer.data), wanted, atol=1e-6, rtol=0)


def test_a_query_finds_its_page_by_the_scores_of_transformers(llm: LLM, reference: Reference) -> None:
    reader = processor(tiny_tokenizer())
    seen = expected(reference[1], reader.process_images(PAGES))
    (asked,) = expected(reference[1], reader.process_queries(["the river"]))
    pages = [{"content": [{"type": "image_pil", "image_pil": page}, {"type": "text", "text": SHOWN}]} for page in PAGES]

    actual = [
        output.outputs.score for output in llm.score("the river" + "<end_of_utterance>" * 10, pages, use_tqdm=False)
    ]

    assert actual == pytest.approx([(asked @ page.T).amax(1).sum().item() for page in seen], abs=1e-3)


def test_the_names_of_published_files_load_as_well(reference: Reference, llm: LLM, tmp_path: Path) -> None:
    """Rewrite to the published layout: a table of additional tokens, other names of projections and sizes."""
    folder = reference[0]
    save_files(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = {
        name.replace("vlm.", "model.")
        .replace("modality_projection.", "modality_projection.proj.")
        .replace("embedding_proj_layer.", "model.custom_text_proj."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    table = "model.text_model.embeddings.tok_embeddings"
    rows = tensors[f"{table}.weight"]
    tensors |= {f"{table}.weight": rows[:280].clone(), f"{table}.additional_embedding.weight": rows[280:].clone()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    eyes = {("embed_dim" if name == "hidden_size" else name): value for name, value in VISION_CONFIG.items()}
    halves = {"text_config": TEXT | {"vocab_size": 280}, "vision_config": eyes, "additional_vocab_size": 8}
    change_config(tmp_path, vlm_config=WHOLE | halves)

    with LLM(str(tmp_path), dtype="float32", device="cpu") as published:
        found = vectors(published, [shown(PAGES[1])])[0]

    assert_close(found, vectors(llm, [shown(PAGES[1])])[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [ModernVBertModel, ModernVBertForMaskedLM])
def test_modernvbert_embeds_by_its_first_token(kind: type[PreTrainedModel], tmp_path: Path) -> None:
    model = kind(ModernVBertConfig(**WHOLE)).eval().requires_grad_(False)
    randomize(model, std=0.2)
    model.save_pretrained(tmp_path)
    save_files(tmp_path)
    inputs = processor(tiny_tokenizer()).process_images(PAGES[:1])
    with torch.inference_mode():
        states = model.base_model(input_ids=inputs["input_ids"], pixel_values=inputs["pixel_values"])
        first = states.last_hidden_state[0, 0]

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        (actual,) = llm.embed([shown(PAGES[0])], use_tqdm=False)

    assert_close(torch.tensor(actual.outputs.embedding), first / first.norm(), atol=1e-4, rtol=0)

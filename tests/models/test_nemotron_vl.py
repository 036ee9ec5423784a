"""Llama Nemotron VL equals SigLIP and Llama of Transformers combined, on tiny random checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM
from cenote.engine.execution.input_packing import normalize_patches
from cenote.errors import BadRequest, LoadError
from cenote.inputs.images.nemotron import NemotronImageProcessor, find_closest_aspect_ratio
from cenote.loading.hf_config import read_config
from cenote.loading.processor_files import read_processor_files
from cenote.models.architecture import HFConfig
from cenote.models.nemotron_vl import nemotron_vl
from cenote.protocol.input_types import Conversation
from cenote.protocol.requests import PoolRequest
from tests.factories import LLMFactory
from tests.models.nemotron_vl import (
    MOST,
    PATCH,
    VISION,
    Reference,
    save_embedder,
    save_reranker,
    tile_pixels,
    tiles,
)
from tests.models.qwen_vl import make_image

WHOLE, WIDE, TALL, LARGE = make_image(30, 27), make_image(70, 30, 1), make_image(20, 95, 2), make_image(200, 150, 3)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save_embedder(tmp_path_factory.mktemp("nemotron_vl"))


@pytest.fixture(scope="module")
def llm(reference: Reference, open_llm: LLMFactory) -> LLM:
    return open_llm(reference.folder, limit_mm_per_prompt={"image": 3})


@pytest.fixture(scope="module")
def reranker(reference: Reference, tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("nemotron_vl_reranker")
    save_reranker(reference, folder)
    return open_llm(folder)


def test_texts_and_images_of_all_shapes_in_one_batch_equal_transformers(llm: LLM, reference: Reference) -> None:
    inputs: list[tuple[str, list[Image.Image]]] = [
        ("query: the cat is in the city", []),
        ("passage: <image> ", [WHOLE]),
        ("passage: <image> a red bird", [WIDE]),
        ("<image>", [TALL]),
        ("the dog <image> and a fish <image>", [LARGE, WHOLE]),
        ("passage: <image> ", [WHOLE]),
    ]
    prompts = [{"prompt": text, "multi_modal_data": {"image": images}} if images else text for text, images in inputs]

    actual = llm.embed(prompts, use_tqdm=False)

    for (text, images), mine in zip(inputs, actual, strict=True):
        assert mine.outputs.embedding == pytest.approx(reference.vector(text, images), abs=1e-5), text


def test_a_conversation_is_one_query_or_one_passage_with_its_images_first(llm: LLM, reference: Reference) -> None:
    content = [{"type": "text", "text": "a red bird"}, {"type": "image_pil", "image_pil": WIDE}]

    chats = [
        Conversation([{"role": "document", "content": content}]),
        Conversation([{"role": "query", "content": "the dog"}]),
        Conversation([{"role": "user", "content": "the dog"}]),
    ]

    actual = llm.engine.pool_sync(PoolRequest(task="embed", inputs=chats))

    expected = [
        reference.vector("<s>passage: <image> a red bird", [WIDE]),
        reference.vector("<s>query: the dog"),
        reference.vector("<s>the dog"),
    ]
    assert_close(
        torch.from_numpy(np.stack([answer.data for answer in actual])), torch.tensor(expected), atol=1e-5, rtol=0
    )
    with pytest.raises(BadRequest, match="one message is embedded at a time, got 2"):
        llm.engine.pool_sync(PoolRequest(task="embed", inputs=[Conversation([*chats[1].messages, *chats[2].messages])]))


def test_a_request_may_ask_for_fewer_tiles(llm: LLM, reference: Reference) -> None:
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": LARGE}}

    fewer = llm.embed({**prompt, "mm_processor_kwargs": {"max_dynamic_patch": 2}}, use_tqdm=False)

    assert fewer[0].outputs.embedding == pytest.approx(reference.vector("<image>", [LARGE], most=2), abs=1e-5)
    with pytest.raises(BadRequest, match="min_dynamic_patch=3, max_dynamic_patch=2"):
        llm.embed({**prompt, "mm_processor_kwargs": {"min_dynamic_patch": 3, "max_dynamic_patch": 2}}, use_tqdm=False)


def test_a_reranker_reads_the_image_of_a_document_before_everything_else(reranker: LLM, reference: Reference) -> None:
    image = {"type": "image_pil", "image_pil": TALL}
    documents: list[Any] = [
        "a red bird",
        {"content": [image]},
        {"content": [image, {"type": "text", "text": "a red bird"}]},
    ]

    actual = reranker.score("the dog", documents, use_tqdm=False)

    assert [each.outputs.score for each in actual] == pytest.approx(
        [
            reference.judged("question:the dog \n \n passage:a red bird"),
            reference.judged("<image> question:the dog \n \n passage:", [TALL]),
            reference.judged("<image> question:the dog \n \n passage:\na red bird", [TALL]),
        ],
        abs=1e-5,
    )


def test_the_text_of_a_document_is_cut_and_its_image_stays(reranker: LLM, reference: Reference) -> None:
    document: Any = {"content": [{"type": "image_pil", "image_pil": TALL}, {"type": "text", "text": "cat " * 200}]}
    prompt = "<image> question:the dog \n \n passage:\n"
    num_image_tokens = 2 + 4 * len(tiles(TALL, MOST))
    num_words = 60 - num_image_tokens - len(reference.tokenizer.encode(prompt.replace("<image>", "")).ids)

    (actual,) = reranker.score("the dog", document, tokenization_kwargs={"truncate_prompt_tokens": 60}, use_tqdm=False)

    assert num_words > 10
    assert actual.outputs.score == pytest.approx(reference.judged(prompt + "cat " * num_words, [TALL]), abs=1e-5)


def test_an_image_in_a_query_is_refused(reranker: LLM) -> None:
    query = {"content": [{"type": "image_pil", "image_pil": TALL}]}

    with pytest.raises(BadRequest, match="0 placeholders '<image>', but 1 images"):
        reranker.score(query, "a red bird", use_tqdm=False)


@pytest.mark.parametrize("size", [(30, 27), (70, 30), (20, 95), (500, 333), (3, 2), (64, 64), (97, 31)])
def test_tiles_have_the_pixels_of_transformers(size: tuple[int, int], reference: Reference) -> None:
    image, vision = make_image(*size), nemotron_vl(read_config(reference.checkpoint)).vision
    assert vision is not None
    reader = NemotronImageProcessor(
        vision.image_spec, read_processor_files(reference.checkpoint), reference.tokenizer.token_to_id, 512, {}
    )

    read = reader.preprocess(image, {}, "image")

    expected = torch.cat([as_columns(tile_pixels(tile)) for tile in tiles(image, MOST)])
    assert_close(normalize_patches(torch.from_numpy(read.patches), read.normalization), expected, atol=1e-6, rtol=0)
    assert read.num_embeds == len(expected) // 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_config": {**VISION, "model_type": "radio"}}, "vision_config.model_type is 'radio'"),
        ({"ps_version": "v1"}, "ps_version is 'v1'"),
        ({"select_layer": -2}, "select_layer is -2"),
    ],
)
def test_unsupported_config_values_are_refused(changes: Any, message: str, reference: Reference) -> None:
    config = read_config(reference.checkpoint)

    with pytest.raises(LoadError, match=message):
        nemotron_vl(HFConfig({**config.values, **changes}))


def test_a_wide_image_becomes_a_wide_row_of_tiles() -> None:
    assert find_closest_aspect_ratio(400, 100, 100, 1, 6) == (4, 1)
    assert find_closest_aspect_ratio(100, 400, 100, 1, 6) == (1, 4)
    assert find_closest_aspect_ratio(100, 100, 100, 1, 6) == (1, 1)


def as_columns(pixels: Tensor) -> Tensor:
    """Return the patches of a tile, [patches, values]."""
    return F.unfold(pixels[None], PATCH, stride=PATCH)[0].T

"""Requests with many images: the same answers as one by one, and never more than a few images in memory."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from cenote.engine.preprocessing.sub_requests import MIN_SUB_REQUEST_INPUTS, compute_sub_request_size, split_request
from cenote.errors import BadRequest, PoolingError
from cenote.protocol.images import ImageSource, ProcessedImage
from cenote.protocol.input_types import Input, MultimodalPrompt
from cenote.protocol.params import PoolingParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.models.tiny_qwen3_vl import IMAGE, make_image, save_tiny_colqwen3, save_tiny_qwen3_vl

NUM_IMAGES = 3 * MIN_SUB_REQUEST_INPUTS + 3


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    save_tiny_qwen3_vl(folder)
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        yield llm


def make_prompts(*, invalid_index: int | None = None) -> list[Any]:
    """Images of different sizes among a few texts; one of them may be none at all."""
    images = [make_image(20 + place, 40, seed=place) for place in range(NUM_IMAGES)]
    given: list[Any] = [{"prompt": IMAGE, "multi_modal_data": {"image": each}} for each in images]
    given[1] = "the cat is in the city"
    if invalid_index is not None:
        given[invalid_index] = {"prompt": IMAGE, "multi_modal_data": {"image": b"no image"}}
    return given


def make_request(given: list[Any], **more: Any) -> PoolRequest:
    inputs: list[Input] = [
        each
        if isinstance(each, str)
        else MultimodalPrompt(each["prompt"], [ImageSource(each["multi_modal_data"]["image"])])
        for each in given
    ]
    return PoolRequest(task="embed", inputs=inputs, **more)


def stack_data(answers: Any) -> Any:
    assert all(isinstance(each, PoolResult) for each in answers), answers
    return np.stack([each.data.numpy() for each in answers])


def test_a_request_is_split_with_its_params_and_adapters() -> None:
    params = [PoolingParams(dimensions=place + 1) for place in range(20)]
    request = make_request(["a"] * 20, params=params, adapter=[str(place) for place in range(20)])

    several = split_request(request, 20)

    assert [(each.offset, len(each.request.inputs)) for each in several] == [(0, 8), (8, 8), (16, 4)]
    assert several[2].request.params == params[16:]
    assert several[1].request.adapter == [str(place) for place in range(8, 16)]
    assert len(split_request(request, MIN_SUB_REQUEST_INPUTS)) == 1
    assert split_request(replace(request, params=params[0], adapter="a"), 20)[1].request.params == params[0]


def test_small_images_make_larger_sub_requests() -> None:
    assert compute_sub_request_size(None) == compute_sub_request_size(50_000_000) == MIN_SUB_REQUEST_INPUTS
    assert compute_sub_request_size(3 * 224 * 224) == 222
    assert compute_sub_request_size(1) == 256


def test_many_images_give_the_same_results_as_single_ones(llm: LLM) -> None:
    given = make_prompts()

    offline = llm.embed(given, use_tqdm=False)
    online = asyncio.run(llm.engine.pool(make_request(given)))

    alone = np.stack([llm.embed(each, use_tqdm=False)[0].outputs.data.numpy() for each in given])
    np.testing.assert_allclose(np.stack([each.outputs.data.numpy() for each in offline]), alone, atol=1e-5)
    np.testing.assert_allclose(stack_data(online), alone, atol=1e-5)
    assert len({each.request_id for each in offline}) == NUM_IMAGES


@pytest.mark.parametrize("place", [0, 5, 20])
def test_an_error_has_the_index_within_the_whole_request(llm: LLM, place: int) -> None:
    given = make_prompts(invalid_index=place)

    for ask in (
        lambda: llm.embed(given, use_tqdm=False),
        lambda: asyncio.run(llm.engine.pool(make_request(given))),
    ):
        with pytest.raises(BadRequest, match=r"multi_modal_data\.image") as refused:
            ask()
        assert refused.value.index == place


def test_a_returned_error_has_its_index_and_other_inputs_have_results(llm: LLM) -> None:
    answers = asyncio.run(llm.engine.pool(make_request(make_prompts(invalid_index=20), return_exceptions=True)))

    (error,) = [each for each in answers if isinstance(each, PoolingError)]
    assert (error.index, answers.index(error), len(answers)) == (20, 20, NUM_IMAGES)


def test_few_images_are_in_memory_at_a_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, alive, most = llm.engine.renderer.multimodal.image_processor, set[int](), 0  # type: ignore[union-attr]
    read = reader.preprocess

    def counting(*given: Any) -> ProcessedImage:
        nonlocal most
        found = read(*given)
        alive.add(id(found))
        weakref.finalize(found.patches, alive.discard, id(found))
        most = max(most, len(alive))
        return found

    monkeypatch.setattr(reader, "preprocess", counting)
    kept = llm.embed(make_prompts() * 2, use_tqdm=False)
    online = asyncio.run(llm.engine.pool(make_request(make_prompts() * 2)))

    assert len(kept) == len(online) == 2 * NUM_IMAGES
    assert most <= 3 * MIN_SUB_REQUEST_INPUTS  # computed, read ahead, and about to be forgotten


def test_documents_with_images_are_scored_in_sub_requests(tmp_path: Any) -> None:
    save_tiny_colqwen3(tmp_path)
    documents = [{"content": [{"type": "image_pil", "image_pil": make_image(30 + n, 40, seed=n)}]} for n in range(19)]
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        found = [each.outputs.score for each in llm.score("the cat", documents, use_tqdm=False)]
        alone = [llm.score("the cat", each, use_tqdm=False)[0].outputs.score for each in documents]

    assert found == pytest.approx(alone, abs=1e-4)

"""Requests with many images: the same results as single images, with few images in memory at a time."""

from __future__ import annotations

import asyncio
import weakref
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
from tests.factories import LLMFactory
from tests.models.tiny_qwen3_vl import IMAGE, make_image, save_tiny_colqwen3, save_tiny_qwen3_vl

NUM_IMAGES = 3 * MIN_SUB_REQUEST_INPUTS + 3


@pytest.fixture(scope="module")
def llm(open_llm: LLMFactory) -> LLM:
    return open_llm(save_tiny_qwen3_vl)


def make_prompts(*, invalid_index: int | None = None) -> list[Any]:
    """Make prompts with images of different sizes and one text; the image at `invalid_index` is invalid."""
    images = [make_image(20 + index, 40, seed=index) for index in range(NUM_IMAGES)]
    prompts: list[Any] = [{"prompt": IMAGE, "multi_modal_data": {"image": image}} for image in images]
    prompts[1] = "the cat is in the city"
    if invalid_index is not None:
        prompts[invalid_index] = {"prompt": IMAGE, "multi_modal_data": {"image": b"no image"}}
    return prompts


def make_request(prompts: list[Any], **kwargs: Any) -> PoolRequest:
    inputs: list[Input] = [
        prompt
        if isinstance(prompt, str)
        else MultimodalPrompt(prompt["prompt"], [ImageSource(prompt["multi_modal_data"]["image"])])
        for prompt in prompts
    ]
    return PoolRequest(task="embed", inputs=inputs, **kwargs)


def stack_data(results: Any) -> Any:
    assert all(isinstance(result, PoolResult) for result in results), results
    return np.stack([result.data for result in results])


def test_a_request_is_split_with_its_params_and_adapters() -> None:
    params = [PoolingParams(dimensions=index + 1) for index in range(20)]
    request = make_request(["a"] * 20, params=params, adapter=[str(index) for index in range(20)])

    sub_requests = split_request(request, 20)

    assert [(item.offset, len(item.request.inputs)) for item in sub_requests] == [(0, 8), (8, 8), (16, 4)]
    assert sub_requests[2].request.params == params[16:]
    assert sub_requests[1].request.adapter == [str(index) for index in range(8, 16)]
    assert len(split_request(request, MIN_SUB_REQUEST_INPUTS)) == 1
    assert split_request(request.replace(params=params[0], adapter="a"), 20)[1].request.params == params[0]


def test_small_images_make_larger_sub_requests() -> None:
    assert compute_sub_request_size(None) == compute_sub_request_size(50_000_000) == MIN_SUB_REQUEST_INPUTS
    assert compute_sub_request_size(3 * 224 * 224) == 222
    assert compute_sub_request_size(1) == 256


def test_many_images_give_the_same_results_as_single_ones(llm: LLM) -> None:
    prompts = make_prompts()

    offline = llm.embed(prompts, use_tqdm=False)
    online = asyncio.run(llm.engine.pool(make_request(prompts)))

    alone = np.stack([llm.embed(prompt, use_tqdm=False)[0].outputs.data.numpy() for prompt in prompts])
    np.testing.assert_allclose(np.stack([output.outputs.data.numpy() for output in offline]), alone, atol=1e-5)
    np.testing.assert_allclose(stack_data(online), alone, atol=1e-5)
    assert len({output.request_id for output in offline}) == NUM_IMAGES


@pytest.mark.parametrize("index", [0, 5, 20])
def test_an_error_has_the_index_within_the_whole_request(llm: LLM, index: int) -> None:
    prompts = make_prompts(invalid_index=index)

    for call in (
        lambda: llm.embed(prompts, use_tqdm=False),
        lambda: llm.engine.pool_sync(make_request(prompts)),
        lambda: asyncio.run(llm.engine.pool(make_request(prompts))),
    ):
        with pytest.raises(BadRequest, match=r"multi_modal_data\.image") as refused:
            call()
        assert refused.value.index == index


def test_a_returned_error_has_its_index_and_other_inputs_have_results(llm: LLM) -> None:
    request = make_request(make_prompts(invalid_index=20), return_exceptions=True)

    for results in (asyncio.run(llm.engine.pool(request)), llm.engine.pool_sync(request)):
        (error,) = [result for result in results if isinstance(result, PoolingError)]
        assert (error.index, results.index(error), len(results)) == (20, 20, NUM_IMAGES)


def test_timing_is_the_sum_over_sub_requests(llm: LLM) -> None:
    for pool in (lambda request: asyncio.run(llm.engine.pool(request)), llm.engine.pool_sync):
        request = make_request(make_prompts())
        pool(request)
        assert request.timing.inference_s > 0 and request.timing.tokenize_s > 0


def test_ctrl_c_while_a_sub_request_runs_aborts_the_rest(llm: LLM) -> None:
    def interrupt(state: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.engine.pool_sync(make_request(make_prompts()), interrupt)

    assert len(llm.embed(make_prompts()[:2], use_tqdm=False)) == 2
    assert not llm.engine.metrics.requests_in_flight()


def test_few_images_are_in_memory_at_a_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    processor, alive, max_alive = llm.engine.renderer.multimodal.image_processor, set[int](), 0  # type: ignore[union-attr]
    preprocess = processor.preprocess

    def counting_preprocess(*args: Any) -> ProcessedImage:
        nonlocal max_alive
        image = preprocess(*args)
        alive.add(id(image))
        weakref.finalize(image.patches, alive.discard, id(image))
        max_alive = max(max_alive, len(alive))
        return image

    monkeypatch.setattr(processor, "preprocess", counting_preprocess)
    offline = llm.embed(make_prompts() * 2, use_tqdm=False)
    online = asyncio.run(llm.engine.pool(make_request(make_prompts() * 2)))

    assert len(offline) == len(online) == 2 * NUM_IMAGES
    assert (
        max_alive <= 3 * MIN_SUB_REQUEST_INPUTS
    )  # in the running sub-request, the next one, and the last one until it is freed


def test_documents_with_images_are_scored_in_sub_requests(tmp_path: Any) -> None:
    save_tiny_colqwen3(tmp_path)
    documents = [{"content": [{"type": "image_pil", "image_pil": make_image(30 + n, 40, seed=n)}]} for n in range(19)]
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        scores = [output.outputs.score for output in llm.score("the cat", documents, use_tqdm=False)]
        alone = [llm.score("the cat", document, use_tqdm=False)[0].outputs.score for document in documents]

    assert scores == pytest.approx(alone, abs=1e-4)

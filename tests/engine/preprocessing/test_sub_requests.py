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
from cenote.engine.preprocessing.sub_requests import INPUTS_AT_ONCE, inputs_at_once, portions
from cenote.errors import BadRequest, PoolingError
from cenote.protocol.images import Image, Picture
from cenote.protocol.input_types import Input, Pictured
from cenote.protocol.requests import Pooled, PoolingParams, PoolRequest
from tests.models.tiny_qwen3_vl import IMAGE, picture, save_tiny_colqwen3, save_tiny_qwen3_vl

NUM_IMAGES = 3 * INPUTS_AT_ONCE + 3


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    save_tiny_qwen3_vl(folder)
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        yield llm


def prompts(*, without: int | None = None) -> list[Any]:
    """Images of different sizes among a few texts; one of them may be none at all."""
    images = [picture(20 + place, 40, seed=place) for place in range(NUM_IMAGES)]
    given: list[Any] = [{"prompt": IMAGE, "multi_modal_data": {"image": each}} for each in images]
    given[1] = "the cat is in the city"
    if without is not None:
        given[without] = {"prompt": IMAGE, "multi_modal_data": {"image": b"no image"}}
    return given


def as_request(given: list[Any], **more: Any) -> PoolRequest:
    inputs: list[Input] = [
        each if isinstance(each, str) else Pictured(each["prompt"], [Image(each["multi_modal_data"]["image"])])
        for each in given
    ]
    return PoolRequest(task="embed", inputs=inputs, **more)


def data(answers: Any) -> Any:
    assert all(isinstance(each, Pooled) for each in answers), answers
    return np.stack([each.data.numpy() for each in answers])


def test_a_request_is_cut_into_neighbours_with_what_belongs_to_them() -> None:
    params = [PoolingParams(dimensions=place + 1) for place in range(20)]
    request = as_request(["a"] * 20, params=params, adapter=[str(place) for place in range(20)])

    several = portions(request, 20)

    assert [(each.start, len(each.request.inputs)) for each in several] == [(0, 8), (8, 8), (16, 4)]
    assert several[2].request.params == params[16:]
    assert several[1].request.adapter == [str(place) for place in range(8, 16)]
    assert len(portions(request, INPUTS_AT_ONCE)) == 1
    assert portions(replace(request, params=params[0], adapter="a"), 20)[1].request.params == params[0]


def test_images_that_are_all_small_are_read_more_at_a_time() -> None:
    assert inputs_at_once(None) == inputs_at_once(50_000_000) == INPUTS_AT_ONCE
    assert inputs_at_once(3 * 224 * 224) == 222
    assert inputs_at_once(1) == 256


def test_many_images_are_answered_as_one_by_one(llm: LLM) -> None:
    given = prompts()

    offline = llm.embed(given, use_tqdm=False)
    online = asyncio.run(llm.engine.pool(as_request(given)))

    alone = np.stack([llm.embed(each, use_tqdm=False)[0].outputs.data.numpy() for each in given])
    np.testing.assert_allclose(np.stack([each.outputs.data.numpy() for each in offline]), alone, atol=1e-5)
    np.testing.assert_allclose(data(online), alone, atol=1e-5)
    assert len({each.request_id for each in offline}) == NUM_IMAGES


@pytest.mark.parametrize("place", [0, 5, 20])
def test_an_error_says_which_of_all_inputs_it_was(llm: LLM, place: int) -> None:
    given = prompts(without=place)

    for ask in (
        lambda: llm.embed(given, use_tqdm=False),
        lambda: asyncio.run(llm.engine.pool(as_request(given))),
    ):
        with pytest.raises(BadRequest, match=r"multi_modal_data\.image") as refused:
            ask()
        assert refused.value.index == place


def test_an_error_that_is_kept_knows_its_place_and_others_are_answered(llm: LLM) -> None:
    answers = asyncio.run(llm.engine.pool(as_request(prompts(without=20), keep_going=True)))

    (error,) = [each for each in answers if isinstance(each, PoolingError)]
    assert (error.index, answers.index(error), len(answers)) == (20, 20, NUM_IMAGES)


def test_few_images_are_in_memory_at_a_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, alive, most = llm.engine.renderer.seeing.reader, set[int](), 0  # type: ignore[union-attr]
    read = reader.read

    def counting(*given: Any) -> Picture:
        nonlocal most
        found = read(*given)
        alive.add(id(found))
        weakref.finalize(found.patches, alive.discard, id(found))
        most = max(most, len(alive))
        return found

    monkeypatch.setattr(reader, "read", counting)
    kept = llm.embed(prompts() * 2, use_tqdm=False)
    online = asyncio.run(llm.engine.pool(as_request(prompts() * 2)))

    assert len(kept) == len(online) == 2 * NUM_IMAGES
    assert most <= 3 * INPUTS_AT_ONCE  # computed, read ahead, and about to be forgotten


def test_documents_are_compared_in_portions(tmp_path: Any) -> None:
    save_tiny_colqwen3(tmp_path)
    documents = [{"content": [{"type": "image_pil", "image_pil": picture(30 + n, 40, seed=n)}]} for n in range(19)]
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        found = [each.outputs.score for each in llm.score("the cat", documents, use_tqdm=False)]
        alone = [llm.score("the cat", each, use_tqdm=False)[0].outputs.score for each in documents]

    assert found == pytest.approx(alone, abs=1e-4)

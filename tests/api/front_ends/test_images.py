"""Images of requests are preprocessed in the front-end, and their patches are sent with the token ids."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from cenote import LLM
from cenote.api.admission.counters import Counters
from cenote.api.app_state import AppState
from cenote.api.engine_process.token_batcher import TokenLink
from cenote.api.front_ends.quarantine import digest_inputs
from cenote.api.front_ends.remote_engines import RemoteEngines
from cenote.api.front_ends.replica_choice import ReplicaLoads, make_route
from cenote.api.front_ends.replica_set import ReplicaSet
from cenote.api.wire.control_messages import EngineExited
from cenote.api.wire.token_messages import TokenBatch
from cenote.config.server import ServerConfig
from cenote.engine import text_engine
from cenote.engine.engine import PoolingEngine
from cenote.engine.preprocessing.image_workers import ImageWorkerPool
from cenote.engine.preprocessing.sub_requests import MIN_SUB_REQUEST_INPUTS
from cenote.errors import BadRequest, InputTooLong, PoolingError
from cenote.inputs.images.image_processor import ImageProcessor
from cenote.protocol.engine import Engine
from cenote.protocol.images import ProcessedImage
from cenote.protocol.input_types import ContentParts, Conversation, Input
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.api.front_ends.remote_link import attach_engine, call_both, connect_remote, wait_until
from tests.api.image_helpers import CAT, DOG, image_part, make_message, text_part
from tests.models.tiny_qwen3_vl import make_image, save_tiny_qwen3_vl
from tests.models.two_towers import TEXT, VISION
from tests.models.two_towers import save as save_two_towers

CORRUPT = "data:image/png;base64,AAAA"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolingEngine]:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    save_tiny_qwen3_vl(folder)
    with LLM(str(folder), dtype="float32", device="cpu", max_model_len=200) as llm:
        yield llm.engine


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[TokenBatch]:
    """The batches of front-ends, whose images no engine preprocesses."""
    received, on_batch = list[TokenBatch](), TokenLink.on_batch

    def record_batch(link: TokenLink, message: TokenBatch, array_bytes: Any) -> None:
        received.append(message)
        on_batch(link, message, array_bytes)

    monkeypatch.setattr(TokenLink, "on_batch", record_batch)
    return received


def parts(*images: Any, text: str = "a red bird") -> ContentParts:
    return ContentParts([*map(image_part, images), text_part(text)])


def request(*inputs: Input, **options: Any) -> PoolRequest:
    return PoolRequest(task="embed", inputs=inputs, **options)


async def pool_remotely(engine: Engine, pool_request: PoolRequest) -> list[Any]:
    async with connect_remote(engine) as (remote, _):
        return await asyncio.wait_for(remote.pool(pool_request), 60)


@pytest.mark.parametrize(
    "item",
    [
        parts(CAT),
        parts(CAT, DOG, CAT),
        Conversation([make_message(text_part("which animal?"), image_part(DOG))]),
        Conversation([make_message(text_part("only texts"), text_part("in parts"))]),
    ],
    ids=["parts", "several images", "conversation", "text parts"],
)
def test_images_give_the_same_results_and_tokens_remotely(
    engine: PoolingEngine, batches: list[TokenBatch], item: Input
) -> None:
    (local,), (remote,) = call_both(engine, lambda target: target.pool(request(item)))
    local_tokens, remote_tokens = call_both(engine, lambda target: target.tokenize(item))

    assert np.array_equal(np.asarray(local.data), np.asarray(remote.data))
    assert (local.num_tokens, local.num_input_tokens) == (remote.num_tokens, remote.num_input_tokens)
    assert local_tokens == remote_tokens
    assert len(batches) == 1


def test_an_image_may_be_longer_than_a_text_remotely(tmp_path: Path, batches: list[TokenBatch]) -> None:
    config = CLIPConfig(text_config=dict(TEXT), vision_config=VISION | {"image_size": 28}, projection_dim=20)
    crop = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    save_two_towers(tmp_path, config, CLIPModel, CLIPImageProcessorPil(**crop))
    with LLM(str(tmp_path), dtype="float32", device="cpu", max_model_len=4) as llm:
        (local,), (remote,) = call_both(llm.engine, lambda target: target.pool(request(parts(CAT, text=""))))

    assert np.array_equal(np.asarray(local.data), np.asarray(remote.data))
    assert local.num_tokens > 4 and len(batches) == 1


def test_an_image_that_several_inputs_have_is_sent_once(engine: PoolingEngine, batches: list[TokenBatch]) -> None:
    asyncio.run(pool_remotely(engine, request(parts(CAT, text="a"), parts(DOG, CAT, text="b"), "no image")))

    (batch,) = batches
    assert batch.images is not None
    assert batch.images.indices == [[0], [1, 0], []] and len(batch.images.records) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, BadRequest),
        ({"mm_processor_kwargs": {"unknown": 1}}, BadRequest),
        ({"mm_processor_kwargs": {"max_pixels": 10**7, "min_pixels": 10**6}}, InputTooLong),
    ],
)
def test_an_invalid_image_is_refused_with_the_same_error_remotely(
    engine: PoolingEngine, options: dict[str, Any], error: type[PoolingError]
) -> None:
    async def pool_refused(target: Engine) -> tuple[Any, ...]:
        with pytest.raises(error) as refused:
            await target.pool(request("a", parts(DOG if options else CORRUPT), **options))
        return type(refused.value), str(refused.value), refused.value.index, refused.value.param

    local, remote = call_both(engine, pool_refused)

    assert local == remote and local[2] == 1


def count_alive(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that returns the most processed images there were in memory at a time."""
    preprocess, alive, counts = ImageProcessor.preprocess, set[int](), [0]

    def counting_preprocess(*args: Any) -> ProcessedImage:
        image = preprocess(*args)
        alive.add(id(image))
        weakref.finalize(image.patches, alive.discard, id(image))
        counts.append(len(alive))
        return image

    monkeypatch.setattr(ImageProcessor, "preprocess", counting_preprocess)
    return lambda: max(counts)


def test_few_images_of_a_large_request_are_in_memory_at_a_time(
    engine: PoolingEngine, batches: list[TokenBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: list[Input] = [parts(make_image(20 + number, 40, number)) for number in range(6 * MIN_SUB_REQUEST_INPUTS)]
    inputs[20], inputs[21] = "a text", parts(CORRUPT)
    get_max_alive, tokens = count_alive(monkeypatch), list[int]()
    options: dict[str, Any] = {"return_exceptions": True, "on_tokenized": tokens.append}

    remote = asyncio.run(pool_remotely(engine, request(*inputs, **options)))

    assert [index for index, result in enumerate(remote) if not isinstance(result, PoolResult)] == [21]
    assert remote[21].index == 21
    assert 0 < get_max_alive() <= 3 * MIN_SUB_REQUEST_INPUTS and not tokens
    assert sum(sum(batch.num_inputs) for batch in batches) == len(inputs) - 1


async def test_later_parts_of_a_request_wait_while_much_is_in_flight(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_engine, "MAX_IN_FLIGHT_BYTES", 1)
    num_last = 3
    inputs = [parts(make_image(20 + number, 40, number)) for number in range(MIN_SUB_REQUEST_INPUTS + num_last)]
    num_running, max_running = 0, 0

    async with connect_remote(engine) as (remote, _):
        pool_part = remote.pool_part

        async def count_running(ready: PoolRequest, first: int | None = None) -> Any:
            nonlocal num_running, max_running
            num_running += 1
            max_running = max(max_running, num_running if len(ready.inputs) == num_last else 0)
            try:
                return await pool_part(ready, first)
            finally:
                num_running -= 1

        monkeypatch.setattr(remote, "pool_part", count_running)
        await asyncio.wait_for(asyncio.gather(*[remote.pool(request(*inputs)) for _ in range(3)]), 60)
    assert max_running == 1


async def test_images_are_not_preprocessed_again_for_the_next_engine_process(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_max_alive = count_alive(monkeypatch)
    lost, on_batch = list[TokenBatch](), TokenLink.on_batch
    monkeypatch.setattr(TokenLink, "on_batch", lambda link, message, array_bytes: lost.append(message))

    async with connect_remote(engine) as (remote, link):
        call = asyncio.create_task(remote.pool(request(parts(CAT), parts(DOG), "a text")))
        await wait_until(lambda: sum(sum(batch.num_inputs) for batch in lost) == 3)
        monkeypatch.setattr(TokenLink, "on_batch", on_batch)
        link.channel.close()
        await wait_until(lambda: remote.status != "ready")
        remote.on_engine_exited(EngineExited(0, 1, "exited with SIGSEGV", [], False, "external"))
        next_link = await attach_engine(remote, engine, 1)
        results = await asyncio.wait_for(call, 60)
        next_link.channel.close()

    assert len(results) == 3 and all(isinstance(result, PoolResult) for result in results)
    assert get_max_alive() == 2


async def test_a_large_request_with_images_is_divided_among_replicas(
    engine: PoolingEngine, batches: list[TokenBatch]
) -> None:
    inputs: list[Input] = [parts(make_image(20 + number, 40, number), text="a red bird " * 9) for number in range(12)]

    async with connect_remote(engine) as (first, _), connect_remote(engine) as (second, _):
        replicas = ReplicaSet([first, second], ReplicaLoads(2, Counters(), 0))
        local, divided = await engine.pool(request(*inputs)), await replicas.pool(request(*inputs))

    for one, other in zip(local, divided, strict=True):
        np.testing.assert_allclose(np.asarray(one.data), np.asarray(other.data), atol=1e-5)
    assert sorted(sum(batch.num_inputs) for batch in batches) == [6, 6]


def test_an_image_counts_as_many_tokens_of_a_replica_before_and_after_it_is_preprocessed(engine: PoolingEngine) -> None:
    workers = ImageWorkerPool(engine.renderer.multimodal)
    page = make_image(400, 300)  # more bytes than tokens

    for item in (parts(CAT, page), Conversation([make_message(image_part(page), text_part("a red bird"))])):
        ready = asyncio.run(workers.preprocess_input(item, {}))
        assert make_route([ready]).tokens == pytest.approx(make_route([item]).tokens, abs=30)


def test_inputs_with_other_images_are_no_poison(engine: PoolingEngine) -> None:
    workers, renderer = ImageWorkerPool(engine.renderer.multimodal), engine.renderer
    limits = engine.request_checks.resolve_limits("embed")

    def digest(image: Any) -> bytes:
        item = asyncio.run(workers.preprocess_input(parts(image), {}))
        (digested,) = digest_inputs(renderer.render([item], request().tokenization, limits).inputs, [0])
        return digested

    assert digest(CAT) == digest(CAT) != digest(CAT.rotate(180))


async def test_images_that_take_longer_than_the_step_timeout_are_a_hang(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, allowed, preprocess = threading.Event(), threading.Event(), ImageProcessor.preprocess

    def wait_and_preprocess(*args: Any) -> ProcessedImage:
        started.set()
        assert allowed.wait(20)
        return preprocess(*args)

    monkeypatch.setattr(ImageProcessor, "preprocess", wait_and_preprocess)

    engines = RemoteEngines(AppState(ServerConfig()), SimpleNamespace())  # type: ignore[arg-type]
    async with connect_remote(engine) as (remote, _):
        engines.engines[0] = remote
        call = asyncio.create_task(remote.pool(request(parts(CAT))))
        await asyncio.to_thread(started.wait, 20)
        texts = remote.text_models.last
        assert texts is not None
        assert engines.find_hang() is None
        monkeypatch.setattr(texts, "step_timeout_s", 0.0)
        assert engines.find_hang()[0] == "image preprocessing"  # type: ignore[index]
        allowed.set()
        await call
        assert engines.find_hang() is None

"""Image preprocessing in worker threads: failures, cancellation, shutdown and fork."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cenote.config.engine import EngineConfig
from cenote.engine import text_engine
from cenote.engine.engine import PoolingEngine
from cenote.engine.local_pending import LocalPending
from cenote.errors import EngineStopped, PoolingError
from cenote.inputs.images.multimodal_processor import MultimodalProcessor
from cenote.protocol.images import ImageSource
from cenote.protocol.input_types import Input, MultimodalPrompt
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.models.tiny_qwen3_vl import IMAGE, make_image, save_tiny_qwen3_vl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    save_tiny_qwen3_vl(folder)
    return folder


@pytest.fixture
def engine(folder: Path) -> Iterator[PoolingEngine]:
    engine = PoolingEngine.load(EngineConfig.from_kwargs(str(folder), dtype="float32"), trust_callers=True)
    yield engine
    engine.stop()


def make_prompt(seed: int = 0) -> MultimodalPrompt:
    return MultimodalPrompt(f"{IMAGE}a red bird", [ImageSource(make_image(30, 20, seed))])


def make_request(*inputs: Input, **kwargs: Any) -> PoolRequest:
    return PoolRequest(task="embed", inputs=inputs, **kwargs)


class PreprocessGate:
    """Blocks image preprocessing until opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        process = MultimodalProcessor.process

        def process_when_open(multimodal: MultimodalProcessor, item: Input, options: Mapping[str, Any]) -> Input:
            self.reached.set()
            self.open.wait(10)
            return process(multimodal, item, options)

        patch.setattr(MultimodalProcessor, "process", process_when_open)


def test_an_exception_of_a_library_fails_only_its_input(engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = engine.image_workers.multimodal.image_processor  # type: ignore[union-attr]
    preprocess = processor.preprocess

    def failing_preprocess(image: Any, options: Any, where: str) -> Any:
        if image.width == 33:
            raise MemoryError("out of memory")
        return preprocess(image, options, where)

    monkeypatch.setattr(processor, "preprocess", failing_preprocess)
    large = MultimodalPrompt(IMAGE, [ImageSource(make_image(33, 20))])

    failed, *others = engine.pool_sync(make_request(large, make_prompt(), "a red bird", return_exceptions=True))

    assert isinstance(failed, PoolingError) and "MemoryError: out of memory" in str(failed)
    assert all(isinstance(other, PoolResult) for other in others)


def test_all_requests_fail_when_the_engine_stops_while_images_are_preprocessed(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = PreprocessGate(monkeypatch)

    async def call_and_stop() -> list[Any]:
        calls = [asyncio.ensure_future(engine.pool(make_request(*map(make_prompt, range(9))))) for _ in range(3)]
        await asyncio.to_thread(gate.reached.wait, 10)
        await asyncio.to_thread(engine.stop)
        gate.open.set()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)

    assert [type(result) for result in asyncio.run(call_and_stop())] == [EngineStopped] * 3
    with pytest.raises(EngineStopped):
        engine.pool_sync(make_request(make_prompt()))


async def test_a_request_cancelled_while_images_are_preprocessed_leaves_nothing_in_flight(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = PreprocessGate(monkeypatch)

    call = asyncio.ensure_future(engine.pool(make_request(*map(make_prompt, range(9)))))
    await asyncio.to_thread(gate.reached.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.open.set()
    (result,) = await engine.pool(make_request(make_prompt()))

    assert isinstance(result, PoolResult)
    assert not engine.metrics.requests_in_flight()


def test_later_parts_of_an_admitted_request_wait_for_capacity(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with many images runs in parts; once the first is admitted, no other is refused."""
    monkeypatch.setattr(text_engine, "MAX_IN_FLIGHT_BYTES", 1)
    submit, num_beside_last = engine.submit, list[int]()

    def record(ready: PoolRequest) -> LocalPending:
        if len(ready.inputs) == 1:
            num_beside_last.append(len(engine.metrics.requests_in_flight()))
        return submit(ready)

    monkeypatch.setattr(engine, "submit", record)
    size = 2 * engine.image_workers.sub_request_size + 1

    async def call_all() -> list[Any]:
        requests = [make_request(*map(make_prompt, range(size))) for _ in range(3)]
        return await asyncio.wait_for(asyncio.gather(*map(engine.pool, requests)), 60)

    for results in asyncio.run(call_all()):
        assert len(results) == size and all(isinstance(result, PoolResult) for result in results)
    assert num_beside_last == [0] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_using_the_engine_after_fork_raises(engine: PoolingEngine) -> None:
    engine.pool_sync(make_request(make_prompt()))  # starts worker threads, which a fork does not have

    if not (child := os.fork()):
        try:
            engine.pool_sync(make_request(make_prompt()))
        except EngineStopped:
            os._exit(7)
        os._exit(1)
    for _ in range(100):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 7
            return
        threading.Event().wait(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child waits for threads that it does not have")

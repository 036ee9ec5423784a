"""Images on their way into an engine: what fails, what is given up, and what ends while they are read."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cenote.config.engine import EngineConfig
from cenote.engine.engine import PoolingEngine
from cenote.errors import EngineStopped, PoolingError
from cenote.inputs.images.multimodal_processor import Seeing
from cenote.protocol.images import Image
from cenote.protocol.input_types import Input, Pictured
from cenote.protocol.requests import Pooled, PoolRequest
from tests.models.tiny_qwen3_vl import IMAGE, picture, save_tiny_qwen3_vl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("looking")
    save_tiny_qwen3_vl(folder)
    return folder


@pytest.fixture
def engine(folder: Path) -> Iterator[PoolingEngine]:
    engine = PoolingEngine.load(EngineConfig.of(str(folder), dtype="float32"), trusts_callers=True)
    yield engine
    engine.stop()


def shown(seed: int = 0) -> Pictured:
    return Pictured(f"{IMAGE}a red bird", [Image(picture(30, 20, seed))])


def asking(*inputs: Input, **more: Any) -> PoolRequest:
    return PoolRequest(task="embed", inputs=inputs, **more)


class Gate:
    """Lets nobody read before it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        read = Seeing.read

        def waiting(seeing: Seeing, item: Input, options: Mapping[str, Any]) -> Input:
            self.reached.set()
            self.open.wait(10)
            return read(seeing, item, options)

        patch.setattr(Seeing, "read", waiting)


def test_what_a_library_raises_is_the_failure_of_one_input(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = engine.looking.seeing.reader  # type: ignore[union-attr]
    usual = reader.picture

    def forgetful(image: Any, options: Any, where: str) -> Any:
        if image.width == 33:
            raise MemoryError("no room")
        return usual(image, options, where)

    monkeypatch.setattr(reader, "picture", forgetful)
    large = Pictured(IMAGE, [Image(picture(33, 20))])

    failed, *others = engine.pool_sync(asking(large, shown(), "a red bird", keep_going=True))

    assert isinstance(failed, PoolingError) and "MemoryError: no room" in str(failed)
    assert all(isinstance(other, Pooled) for other in others)


def test_everybody_is_answered_when_the_engine_stops_while_images_are_read(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def stopped() -> list[Any]:
        calls = [asyncio.ensure_future(engine.pool(asking(*map(shown, range(9))))) for _ in range(3)]
        await asyncio.to_thread(gate.reached.wait, 10)
        await asyncio.to_thread(engine.stop)
        gate.open.set()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)

    assert [type(answer) for answer in asyncio.run(stopped())] == [EngineStopped] * 3
    with pytest.raises(EngineStopped):
        engine.pool_sync(asking(shown()))


def test_a_caller_that_leaves_while_its_images_are_read_leaves_nothing_behind(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def left() -> Any:
        call = asyncio.ensure_future(engine.pool(asking(*map(shown, range(9)))))
        await asyncio.to_thread(gate.reached.wait, 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.open.set()
        return await engine.pool(asking(shown()))

    (answer,) = asyncio.run(left())

    assert isinstance(answer, Pooled)
    assert engine.looking.num_chars == 0 and not engine.records.everybody()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_told_that_the_engine_is_another_s(engine: PoolingEngine) -> None:
    engine.pool_sync(asking(shown()))  # there are idle threads now, which a fork does not have

    if not (child := os.fork()):
        try:
            engine.pool_sync(asking(shown()))
        except EngineStopped:
            os._exit(7)
        os._exit(1)
    for _ in range(100):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 7
            return
        threading.Event().wait(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("it waits for threads that it does not have")

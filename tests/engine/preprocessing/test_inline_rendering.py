"""Short texts are rendered by the thread of their caller while the tokenizer thread is idle."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cenote.engine.engine import PoolingEngine
from cenote.engine.engine_loop import EngineLoop
from cenote.engine.text_engine import MAX_INLINE_CHARS
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import PoolRequest
from tests.engine.conftest import TIMEOUT_S, MakeEngine

TRUNCATE = TokenizationParams(truncate_prompt_tokens=-1)


class RecordingRenderer:
    """Records the threads that render; blocks texts that begin with "wait" until opened."""

    def __init__(self, engine: PoolingEngine) -> None:
        self.threads: list[str] = []
        self.reached, self.opened = threading.Event(), threading.Event()
        self._render = engine.renderer.render

    def __call__(self, inputs: Any, *settings: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        if str(inputs[0]).startswith("wait"):
            self.reached.set()
            assert self.opened.wait(TIMEOUT_S)
        return self._render(inputs, *settings)


@pytest.fixture
def engine(make_engine: MakeEngine) -> PoolingEngine:
    return make_engine()


@pytest.fixture
def renderer(engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch) -> RecordingRenderer:
    recording = RecordingRenderer(engine)
    monkeypatch.setattr(engine.renderer, "render", recording)
    return recording


def test_only_a_single_short_text_is_rendered_by_the_caller(engine: PoolingEngine, renderer: RecordingRenderer) -> None:
    engine.pool_sync(PoolRequest(task="embed", inputs=["hello"]))
    engine.pool_sync(PoolRequest(task="embed", inputs=["hello", "world"]))
    engine.pool_sync(PoolRequest(task="embed", inputs=["a" * (MAX_INLINE_CHARS + 1)], tokenization=TRUNCATE))
    engine.pool_sync(PoolRequest(task="embed", inputs=["hello"], prompt="a" * MAX_INLINE_CHARS, tokenization=TRUNCATE))
    engine.pool_sync(PoolRequest(task="embed", inputs=[[101, 102]]))
    caller = threading.current_thread().name
    assert renderer.threads == [caller, *["cenote-tokenizer"] * 4]


def test_both_threads_return_the_same_tokens(engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = PoolRequest(task="embed", inputs=["Hello, world!"])
    (by_caller,) = engine.pool_sync(request)
    monkeypatch.setattr("cenote.engine.preprocessing.tokenizer_worker.MAX_INLINE_CHARS", 0)
    (by_tokenizer,) = engine.pool_sync(request)
    assert by_caller.token_ids.tolist() == by_tokenizer.token_ids.tolist()  # type: ignore[union-attr]


def test_a_short_text_does_not_overtake_what_the_tokenizer_thread_renders(
    engine: PoolingEngine, renderer: RecordingRenderer
) -> None:
    first = engine.submit(PoolRequest(task="embed", inputs=["wait", "for me"]))
    assert renderer.reached.wait(TIMEOUT_S)
    second = engine.submit(PoolRequest(task="embed", inputs=["hello"]))
    assert engine.tokenizer_worker.num_waiting == 1
    renderer.opened.set()
    assert len(first.wait()) == 2
    assert len(second.wait()) == 1
    assert renderer.threads == ["cenote-tokenizer"] * 2


@pytest.mark.parametrize("step", ["render", "is_busy", "add"])
def test_an_interrupted_caller_leaves_nothing_in_flight(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if step == "render":
            patched.setattr(engine.renderer, "render", interrupt)
        elif step == "is_busy":
            patched.setattr(EngineLoop, "is_busy", property(interrupt))
        else:
            patched.setattr(EngineLoop, "is_busy", True)
            patched.setattr(engine.core.dedup, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.pool_sync(PoolRequest(task="embed", inputs=["hello"]))
    assert engine.metrics.num_in_flight_chars == 0
    assert len(engine.pool_sync(PoolRequest(task="embed", inputs=["hello"]))) == 1

"""Handlers of large requests run in a thread, and in the event loop where they say so."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.handler_thread import TO_LOOP, TO_THREAD, handle_in_thread
from tests.api.app_client import make_client

LOOP, THREAD = "event loop", "thread"


class Place:
    is_in_thread = False


def here() -> str:
    return LOOP if threading.current_thread() is threading.main_thread() else THREAD


def test_a_handler_moves_to_the_event_loop_and_back() -> None:
    places = []

    async def handle() -> str:
        places.append(here())
        await asyncio.sleep(0)
        places.append(here())
        await TO_LOOP
        await asyncio.sleep(0.001)
        places.append(here())
        await TO_THREAD
        places.append(here())
        return "answer"

    assert asyncio.run(_run(handle())) == "answer"
    assert places == [THREAD, THREAD, LOOP, THREAD]


async def _run(work: Any) -> Any:
    return await handle_in_thread(work, Place())


def test_an_error_reaches_the_caller_and_can_be_handled_on_either_side() -> None:
    async def handle() -> None:
        await TO_LOOP
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            await TO_THREAD
            raise ValueError(here()) from None

    with pytest.raises(ValueError, match=THREAD):
        asyncio.run(_run(handle()))


@pytest.mark.parametrize("waits_in", [LOOP, THREAD])
async def test_a_cancelled_handler_ends_before_its_caller_goes_on(waits_in: str) -> None:
    ended, started = [], threading.Event()

    async def handle() -> None:
        try:
            if waits_in == LOOP:
                await TO_LOOP
                started.set()
                await asyncio.sleep(60)
            started.set()
            time.sleep(0.05)  # a step that nobody can interrupt
            await TO_LOOP
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    task = asyncio.ensure_future(_run(handle()))
    await asyncio.to_thread(started.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_the_event_loop_runs_while_a_large_request_is_handled() -> None:
    async def handle() -> None:
        ends_at = time.monotonic() + 0.2
        while time.monotonic() < ends_at:
            sum(range(100))

    task, turns = asyncio.ensure_future(_run(handle())), 0
    while not task.done():
        await asyncio.sleep(0.001)
        turns += 1

    assert turns > 5


def test_large_bodies_have_the_answers_of_small_ones(llm: LLM) -> None:
    client: TestClient = make_client(llm)
    padding = "x" * 300_000  # an unused field

    for path, body in (
        ("/v1/embeddings", {"input": ["the city", "a bird"]}),
        ("/pooling", {"input": "the city", "task": "token_embed"}),
        ("/v1/models/mini:countTokens", {"contents": [{"parts": [{"text": "the city"}]}]}),
        ("/v1/models/mini:batchEmbedContents", {"requests": [{"content": {"parts": [{"text": "a"}]}, "taskType": 1}]}),
        ("/score", {"text_1": "the city", "text_2": ["a bird"]}),
        ("/v1/rerank", {"query": "the city", "documents": ["a bird"]}),
        ("/tokenize", {"inputs": ["the city"]}),
        ("/decode", {"ids": [7, 8]}),
        ("/v1/classify", {"input": ["the city"], "labels": ["a", "b"]}),
        ("/v2/embed", {"texts": ["the city"], "embedding_types": ["float"], "truncate": "NONE"}),
        ("/vertex", {"instances": [{"inputs": "the city"}]}),
        ("/", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
        ("/invocations", {"input": "the city"}),
    ):
        small, large = client.post(path, json=body), client.post(path, json=body | {"unused_padding": padding})

        assert (small.status_code, large.status_code) == (200, 200), (path, small.text, large.text[:500])
        assert large.headers["x-prompt-tokens"] == small.headers["x-prompt-tokens"]
        assert drop_ids(large.json()) == drop_ids(small.json())


def drop_ids(answer: Any) -> Any:
    return (
        {name: value for name, value in answer.items() if name not in ("id", "created")}
        if isinstance(answer, dict)
        else answer
    )

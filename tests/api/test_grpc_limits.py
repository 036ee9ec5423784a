"""What a gRPC client may make the server do and hold: without a key, with a removed key, with hostile messages."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from cenote import LLM
from cenote.api import api_keys
from cenote.api.admission.counters import BYTES
from cenote.api.grpc import health as health_module
from cenote.api.grpc import server
from cenote.api.grpc import tei_pb2 as tei
from cenote.api.grpc.messages import MessageParser, has_more_fields
from cenote.api.grpc.receiver import MIN_PLACES
from cenote.errors import BadRequest, BodyTooLarge
from tests.factories import LLMFactory
from tests.tiny import tiny_bert

from .grpc_server import TIMEOUT_S, make_state, serve_grpc

KEY = (("authorization", "Bearer sesame"),)
EMPTY_TEXT = b"\x12\x00"  # of RerankRequest.texts
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_bert)


async def send(channel: grpc.aio.Channel, method: str, message: bytes, metadata: Any = ()) -> tuple[str, str]:
    """Send a message as it is; return the status and its details."""
    try:
        await channel.unary_unary(method)(message, metadata=metadata, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


def rerank_parser(max_items: int) -> MessageParser:
    return MessageParser(tei.DESCRIPTOR.message_types_by_name["RerankRequest"], max_items)


# keys


async def test_the_message_of_a_call_without_a_key_is_not_received(llm: LLM) -> None:
    message = EMPTY_TEXT * MEGABYTE

    app_state = make_state(llm, api_key=("sesame",))
    async with serve_grpc(app_state) as channel:
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            tracemalloc.start()
            status, details = await send(channel, "/tei.v1.Rerank/Rerank", message, metadata)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert status == "UNAUTHENTICATED" and "missing or invalid API key" in details
            assert peak < MEGABYTE

    assert app_state.num_in_flight == 0


async def test_a_stream_ends_when_its_key_is_removed(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "RELOAD_INTERVAL_S", 0.0)
    keys = tmp_path / "keys"
    keys.write_text("sesame weight=2\nother\n")

    async with serve_grpc(make_state(llm, api_key_file=str(keys))) as channel:
        method = channel.stream_stream("/tei.v1.Embed/EmbedStream")
        stream = method(metadata=KEY, timeout=TIMEOUT_S)
        message = tei.EmbedRequest(inputs="the cat").SerializeToString()
        await stream.write(message)
        assert await stream.read() != grpc.aio.EOF

        keys.write_text("other\n")
        await stream.write(message)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("settings", [{}, {"api_key": ("sesame",)}])
async def test_a_message_is_limited_with_a_key_as_without(llm: LLM, settings: dict[str, Any]) -> None:
    large = tei.EmbedRequest(inputs="a " * (3 * MEGABYTE), truncate=True).SerializeToString()

    async with serve_grpc(make_state(llm, **settings)) as channel:
        status, details = await send(channel, "/tei.v1.Embed/Embed", large, KEY)

    assert status == "RESOURCE_EXHAUSTED" and "4194304" in details


async def test_messages_of_many_calls_are_received_as_far_as_memory_for_them_is_left(llm: LLM) -> None:
    """Calls of one client, each with a message of nearly 4 MiB, at the same time."""
    message = tei.EmbedRequest(inputs="a " * (2 * MEGABYTE), truncate=True).SerializeToString()
    app_state = make_state(llm, api_key=("sesame",), max_inflight_bytes=20 * MEGABYTE)
    num_held = []
    controller = app_state.admission
    add_bytes = controller.add_bytes
    controller.add_bytes = lambda *arguments: (add_bytes(*arguments), num_held.append(app_state.counters.total(BYTES)))  # type: ignore[method-assign,func-returns-value,assignment]

    async with serve_grpc(app_state) as channel:
        replies = await asyncio.gather(*(send(channel, "/tei.v1.Embed/Embed", message, KEY) for _ in range(40)))
        assert {status for status, _ in replies} == {"OK", "RESOURCE_EXHAUSTED"}
        assert await send(channel, "/tei.v1.Embed/Embed", message, KEY) == ("OK", "")

    assert len(message) < max(num_held) <= 20 * MEGABYTE
    assert app_state.counters.total(BYTES) == 0


async def test_the_messages_of_a_stream_count_as_they_arrive(llm: LLM) -> None:
    app_state = make_state(llm, max_inflight_bytes=6 * MEGABYTE)
    message = tei.RerankStreamRequest(query="q", text="a" * MEGABYTE).SerializeToString()

    async with serve_grpc(app_state) as channel:
        stream = channel.stream_unary("/tei.v1.Rerank/RerankStream")(timeout=TIMEOUT_S)
        for _ in range(3):
            await stream.write(message)
        assert await stream.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the message would take about 60000" in await stream.details()

    assert app_state.counters.total(BYTES) == 0


async def test_calls_that_send_no_message_make_room_for_one_that_does(llm: LLM) -> None:
    message = tei.EmbedRequest(inputs="the cat").SerializeToString()

    async with serve_grpc(make_state(llm, max_inflight_bytes=MEGABYTE)) as channel:
        silent = [channel.stream_stream("/tei.v1.Embed/Embed")(timeout=TIMEOUT_S) for _ in range(MIN_PLACES)]
        await asyncio.gather(*(call.wait_for_connection() for call in silent))
        await asyncio.sleep(0.3)  # until the server has begun to receive

        assert await send(channel, "/tei.v1.Embed/Embed", message) == ("OK", "")

        statuses = [call.cancel() or await call.code() for call in silent]
        assert statuses.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 1


async def test_responses_that_nobody_reads_count_as_held_until_their_connection_is_old(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_AGE_S", 2.0)
    monkeypatch.setattr(server, "GRACE_S", 0.5)
    app_state = make_state(llm)
    message = tei.EncodeRequest(inputs="the cat " * 3000).SerializeToString()
    few_bytes_unread = [("grpc.http2.bdp_probe", 0)]

    async with serve_grpc(app_state) as _:
        target = f"127.0.0.1:{app_state.settings.grpc_port}"
        async with grpc.aio.insecure_channel(target, options=few_bytes_unread) as channel:
            stream = channel.stream_stream("/tei.v1.Tokenize/TokenizeStream")(timeout=TIMEOUT_S)
            for _ in range(20):
                await stream.write(message)
            await wait_until(lambda: app_state.counters.total(BYTES) > MEGABYTE)
            await wait_until(lambda: app_state.counters.total(BYTES) == 0)
            stream.cancel()


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S / 2):
        while not condition():
            await asyncio.sleep(0.005)


# messages


async def test_a_message_with_too_many_elements_is_refused(llm: LLM) -> None:
    async with serve_grpc(make_state(llm)) as channel:
        status, details = await send(channel, "/tei.v1.Rerank/Rerank", EMPTY_TEXT * MEGABYTE)
        assert status == "RESOURCE_EXHAUSTED" and "more than 2048 elements" in details


async def test_a_message_that_is_no_protobuf_is_refused(llm: LLM) -> None:
    async with serve_grpc(make_state(llm)) as channel:
        status, details = await send(channel, "/tei.v1.Embed/Embed", b"\x0a\xff\xff\xff\xff\x0f")
        assert (status, details) == ("INVALID_ARGUMENT", "the message is not a valid EmbedRequest of protobuf")


async def test_the_error_for_a_long_name_is_short_enough_for_a_client(llm: LLM) -> None:
    message = tei.EmbedRequest(inputs="a", prompt_name="x" * MEGABYTE).SerializeToString()

    async with serve_grpc(make_state(llm)) as channel:
        status, details = await send(channel, "/tei.v1.Embed/Embed", message)
        assert status == "INVALID_ARGUMENT" and details.startswith("unknown prompt_name 'xxx")
        assert len(details) < 3000


def test_elements_are_counted_up_to_the_limit() -> None:
    message = tei.RerankRequest(query="q" * 300, texts=["a", "", "b" * 70_000] * 10, truncate=True, raw_scores=True)
    data = message.SerializeToString()

    assert not has_more_fields(data, 33) and has_more_fields(data, 32)
    assert rerank_parser(max_items=30).parse(data) == message
    with pytest.raises(BodyTooLarge, match="more than 20 elements"):
        rerank_parser(max_items=20).parse(data)


def test_damaged_messages_are_parsed_or_refused() -> None:
    rng = random.Random(1)
    data = tei.RerankRequest(query="q", texts=["a", "", "b" * 200] * 30).SerializeToString()
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 2, 5))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            message = rerank_parser(max_items=90).parse(bytes(damaged[: rng.randrange(len(damaged))]))
        except (BadRequest, BodyTooLarge):
            continue
        assert len(message.texts) <= 98


async def test_refused_calls_leave_nothing_in_memory(llm: LLM) -> None:
    """Without a collection of garbage: an exception that is kept would keep the message in its frames."""

    async with serve_grpc(make_state(llm)) as channel:

        async def refuse_some(count: int) -> None:
            for _ in range(count):
                text = os.urandom(MEGABYTE // 2).hex()
                message = tei.EmbedRequest(inputs=text, dimensions=0).SerializeToString()
                assert (await send(channel, "/tei.v1.Embed/Embed", message))[0] == "INVALID_ARGUMENT"

        await refuse_some(3)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            await refuse_some(20)
            assert tracemalloc.get_traced_memory()[0] < 4 * MEGABYTE
        finally:
            tracemalloc.stop()
            gc.enable()


# health


async def test_watches_without_a_key_leave_calls_to_others(llm: LLM) -> None:
    async with serve_grpc(make_state(llm, api_key=("sesame",), max_connections=4)) as channel:
        watches = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=TIMEOUT_S) for _ in range(4)]
        replies = await asyncio.gather(*(watch.read() for watch in watches), return_exceptions=True)
        assert replies.count(b"\x08\x01") == 2

        message = tei.EmbedRequest(inputs="the cat").SerializeToString()
        assert await send(channel, "/tei.v1.Embed/Embed", message, KEY) == ("OK", "")


async def test_watches_without_a_key_are_limited(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "MAX_WATCHES", 2)

    async with serve_grpc(make_state(llm, api_key=("sesame",))) as channel:

        async def begin_watch(metadata: Any = ()) -> Any:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", metadata=metadata, timeout=TIMEOUT_S)
            assert await watch.read() == b"\x08\x01"
            return watch

        watches = [await begin_watch() for _ in range(2)]
        with pytest.raises(grpc.aio.AioRpcError, match="limit 2 without an API key"):
            await begin_watch()
        watches.append(await begin_watch(KEY))

        for watch in watches:
            watch.cancel()
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                (await begin_watch()).cancel()
                return
            except grpc.aio.AioRpcError:
                assert time.monotonic() < end, "the places of watches that have ended are free"
                await asyncio.sleep(0.05)

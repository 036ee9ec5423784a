"""Frames that cannot be decoded fail alone, garbage closes the channel; every call ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from cenote.api.wire.channel import (
    ALIGNMENT,
    CALL,
    FRAME_HEADER,
    MAX_MESSAGE_BYTES,
    MESSAGE,
    REPLY,
    WIRE_VERSION,
    Channel,
)
from cenote.api.wire.control_messages import Drain, Listening, ReleaseEngine, ShutDown
from cenote.api.wire.messages import Done, EngineDown, Message
from cenote.errors import BadRequest, EngineStopped, PoolingError

Messages = Drain | Listening | EngineDown | ShutDown | ReleaseEngine | Done
UNREADABLE = [b"", b"\xc1", b"\x93\x01\x02", b"\x92\xa7nothing\x07", b"\xff" * 1000]


def encode_frame(content: bytes, kind: int = MESSAGE, call_id: int = 0) -> bytes:
    size = -(-(FRAME_HEADER.size + len(content)) // ALIGNMENT) * ALIGNMENT
    return (FRAME_HEADER.pack(WIRE_VERSION, kind, len(content), 0, call_id) + content).ljust(size, b"\0")


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def receive(*frames: bytes, on_message: Callable[[Any], None] = lambda message: None) -> tuple[list[str], int, bool]:
    """Return the texts of the messages, the number of failed ones, and whether the channel closed by itself."""

    async def run() -> tuple[list[str], int, bool]:
        texts: list[str] = []
        failures: list[Exception] = []
        closed = asyncio.Event()

        def take(message: Any, array_bytes: Any) -> None:
            texts.append(message.reason)
            on_message(message)

        ours, theirs = socket.socketpair()
        channel: Channel[Any] = Channel(Messages, take, closed.set, failures.append)
        ours.setblocking(False)
        await channel.connect(ours)
        theirs.sendall(b"".join([*frames, encode_frame(encode(EngineDown("last")))]))
        while not closed.is_set() and "last" not in texts:
            await asyncio.sleep(0.002)
        is_closed = closed.is_set()
        channel.close()
        theirs.close()
        await closed.wait()
        return texts, len(failures), is_closed

    return asyncio.run(run())


@pytest.mark.parametrize("content", [*UNREADABLE, encode(EngineDown("cut"))[:-1]], ids=repr)
def test_a_message_that_cannot_be_decoded_fails_alone(content: bytes) -> None:
    assert receive(encode_frame(content)) == (["last"], 1, False)


@pytest.mark.parametrize(
    "header",
    [
        FRAME_HEADER.pack(WIRE_VERSION + 1, MESSAGE, 4, 0, 0),
        FRAME_HEADER.pack(WIRE_VERSION, MESSAGE, MAX_MESSAGE_BYTES + 1, 0, 0),
        FRAME_HEADER.pack(WIRE_VERSION, MESSAGE, 4, 2**60, 0),
        b"\xff" * FRAME_HEADER.size,
    ],
    ids=["other version", "message too long", "arrays too long", "garbage"],
)
def test_an_invalid_frame_header_closes_the_channel_after_the_messages_before_it(header: bytes) -> None:
    assert receive(encode_frame(encode(EngineDown("first"))), header + b"\0" * 64) == (["first"], 0, True)


def test_a_callback_that_raises_never_closes_the_channel() -> None:
    def fail_at_first(message: EngineDown) -> None:
        if message.reason == "first":
            raise RuntimeError("a defect")

    frames = encode_frame(encode(EngineDown("first")))
    assert receive(frames, on_message=fail_at_first) == (["first", "last"], 1, False)


async def test_a_report_of_a_failure_that_fails_as_well_does_not_close_the_channel() -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a defect")

    async with open_channels(answer=lambda call: Done()) as (ours, theirs):
        ours.on_message = ours.on_unhandled = fail  # type: ignore[assignment]
        theirs.send(Listening())
        assert await ours.call(ShutDown()) == Done()


@asynccontextmanager
async def open_channels(answer: Callable[[Any], Any]) -> AsyncIterator[tuple[Channel[Any], Channel[Any]]]:
    """Return the ends of a channel, the second of which answers calls."""
    ours, theirs = (sock for sock in socket.socketpair())
    async with open_channel(ours, answer) as one, open_channel(theirs, answer) as other:
        yield one, other


@asynccontextmanager
async def open_channel(
    sock: socket.socket, answer: Callable[[Any], Any] = lambda call: Done()
) -> AsyncIterator[Channel[Any]]:
    closed = asyncio.Event()
    channel: Channel[Any] = Channel(Messages, lambda message, _: None, closed.set, on_call=lambda call, _: answer(call))
    sock.setblocking(False)
    await channel.connect(sock)
    try:
        yield channel
    finally:
        channel.close()
        await closed.wait()


def call(answer: Callable[[Any], Any]) -> Message:
    async def run() -> Message:
        async with open_channels(answer) as (ours, _):
            return await asyncio.wait_for(ours.call(ShutDown()), 20)

    return asyncio.run(run())


async def wait_for_ever() -> Done:
    await asyncio.Event().wait()
    return Done()


async def raise_in_task(error: Exception) -> Done:
    raise error


async def reply_later() -> Done:
    await asyncio.sleep(0.01)
    return Done()


@pytest.mark.parametrize("answer", [Done, reply_later], ids=["at once", "later"])
def test_a_call_returns_its_reply(answer: Callable[[], Done | Awaitable[Done]]) -> None:
    assert call(lambda message: answer()) == Done()


def test_a_call_fails_with_the_error_of_the_other_process() -> None:
    def refuse(message: Any) -> Done:
        raise BadRequest("no such model", param="name")

    with pytest.raises(BadRequest, match="no such model") as refusal:
        call(refuse)
    assert refusal.value.param == "name"
    with pytest.raises(BadRequest, match="no such adapter"):
        call(lambda message: raise_in_task(BadRequest("no such adapter")))
    with pytest.raises(RuntimeError, match="ValueError: a defect"):
        call(lambda message: raise_in_task(ValueError("a defect")))


async def test_calls_and_replies_of_both_ends_are_not_confused() -> None:
    async with open_channels(lambda message: reply_later()) as (ours, theirs):
        replies = await asyncio.gather(*(end.call(ShutDown()) for end in (ours, theirs, ours)))
        assert replies == [Done()] * 3


@pytest.mark.parametrize("ends", ["ours", "theirs"])
async def test_a_closed_channel_fails_its_pending_calls_and_later_ones(ends: str) -> None:
    async with open_channels(lambda message: wait_for_ever()) as (ours, theirs):
        calls = [asyncio.create_task(ours.call(ReleaseEngine(number))) for number in range(3)]
        await asyncio.sleep(0.01)
        (ours if ends == "ours" else theirs).close()
        for pending in calls:
            with pytest.raises(EngineStopped, match="exited before it responded"):
                await asyncio.wait_for(pending, 20)
        with pytest.raises(EngineStopped):
            await ours.call(ShutDown())


async def test_a_call_whose_caller_is_cancelled_is_cancelled_at_the_other_end() -> None:
    ended: list[str] = []

    async def note_end() -> Done:
        try:
            return await wait_for_ever()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with asyncio.timeout(20):
        async with open_channels(lambda message: note_end()) as (ours, _):
            with suppress(TimeoutError):
                await asyncio.wait_for(ours.call(ShutDown()), 0.01)
            while not ended:
                await asyncio.sleep(0.002)


@pytest.mark.parametrize("content", UNREADABLE, ids=repr)
async def test_a_reply_that_cannot_be_read_fails_its_call_alone(content: bytes) -> None:
    ours, theirs = socket.socketpair()
    async with open_channel(ours) as channel:
        failing, answered = channel.start_call(ShutDown()), channel.start_call(ShutDown())
        theirs.sendall(encode_frame(content, REPLY, 1) + encode_frame(encode(Done()), REPLY, 2))
        assert (await asyncio.wait_for(answered, 20))[0] == Done()
        with pytest.raises(PoolingError, match="cannot be read"):
            await failing
        theirs.close()


@pytest.mark.parametrize("content", UNREADABLE, ids=repr)
async def test_a_call_that_cannot_be_read_is_refused(content: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    async with open_channel(ours):
        await loop.sock_sendall(theirs, encode_frame(content, CALL, 7))
        refusal = await asyncio.wait_for(loop.sock_recv(theirs, 4096), 20)
        theirs.close()
    assert FRAME_HEADER.unpack_from(refusal)[4] == 7
    assert b"could not be read by the engine process" in refusal

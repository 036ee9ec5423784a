"""Frames that cannot be decoded: one message is refused, garbage closes the channel."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from cenote.api.wire.channel import ALIGNMENT, FRAME_HEADER, MAX_MESSAGE_BYTES, WIRE_VERSION, Channel
from cenote.api.wire.link_messages import EngineMessage
from cenote.api.wire.messages import Message, MetricsResponse


def encode_frame(content: bytes, call_id: int = 0, version: int = WIRE_VERSION) -> bytes:
    size = -(-(FRAME_HEADER.size + len(content)) // ALIGNMENT) * ALIGNMENT
    return (FRAME_HEADER.pack(version, len(content), 0, call_id) + content).ljust(size, b"\0")


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def receive(*frames: bytes) -> tuple[list[Any], list[int], bool]:
    """Return the messages, the call ids of undecodable ones, and whether the channel closed by itself."""

    async def run() -> tuple[list[Any], list[int], bool]:
        messages: list[Any] = []
        refused: list[int] = []
        closed = asyncio.Event()
        ours, theirs = socket.socketpair()
        channel: Channel[Any] = Channel(
            EngineMessage,
            lambda message, _: messages.append(message),
            closed.set,
            lambda call_id, error: refused.append(call_id),
        )
        ours.setblocking(False)
        await channel.connect(ours)
        theirs.sendall(b"".join(frames))
        for _ in range(1000):
            if closed.is_set() or len(messages) + len(refused) == len(frames):
                break
            await asyncio.sleep(0.002)
        is_closed = closed.is_set()
        channel.close()
        theirs.close()
        await closed.wait()
        return messages, refused, is_closed

    return asyncio.run(run())


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", b"\x93\x01\x02", encode(MetricsResponse(7, []))[:-1], b"\x92\xa7nothing\x07", b"\xff" * 1000],
    ids=["empty", "invalid", "cut", "cut message", "unknown type", "garbage"],
)
def test_a_message_that_cannot_be_decoded_is_refused_alone(content: bytes) -> None:
    frames = (
        encode_frame(encode(MetricsResponse(1, [])), 1),
        encode_frame(content, 2),
        encode_frame(encode(MetricsResponse(3, [])), 3),
    )
    messages, refused, is_closed = receive(*frames)

    assert [message.call_id for message in messages] == [1, 3]
    assert refused == [2]
    assert not is_closed


@pytest.mark.parametrize(
    "header",
    [
        FRAME_HEADER.pack(WIRE_VERSION + 1, 4, 0, 0),
        FRAME_HEADER.pack(WIRE_VERSION, MAX_MESSAGE_BYTES + 1, 0, 0),
        FRAME_HEADER.pack(WIRE_VERSION, 4, 2**60, 0),
        b"\xff" * FRAME_HEADER.size,
    ],
    ids=["other version", "message too long", "arrays too long", "garbage"],
)
def test_an_invalid_frame_header_closes_the_channel_after_the_messages_before_it(header: bytes) -> None:
    messages, refused, is_closed = receive(encode_frame(encode(MetricsResponse(1, [])), 1), header + b"\0" * 64)

    assert [message.call_id for message in messages] == [1]
    assert not refused
    assert is_closed


@pytest.mark.parametrize("reports_fail", [False, True], ids=["", "the report fails as well"])
def test_a_callback_that_raises_never_closes_the_channel(reports_fail: bool) -> None:
    received: list[int] = []
    refused: list[int] = []

    def on_message(message: Any, array_bytes: Any) -> None:
        received.append(message.call_id)
        if message.call_id == 1:
            raise RuntimeError("a defect")

    def on_unhandled(call_id: int, error: Exception) -> None:
        refused.append(call_id)
        if reports_fail:
            raise RuntimeError("another defect")

    async def run() -> bool:
        closed = asyncio.Event()
        ours, theirs = socket.socketpair()
        channel: Channel[Any] = Channel(EngineMessage, on_message, closed.set, on_unhandled)
        ours.setblocking(False)
        await channel.connect(ours)
        theirs.sendall(b"".join(encode_frame(encode(MetricsResponse(number, [])), number) for number in (1, 2)))
        while len(received) < 2 and not closed.is_set():
            await asyncio.sleep(0.002)
        was_open = channel.is_open
        channel.close()
        theirs.close()
        await closed.wait()
        return was_open

    assert asyncio.run(run())
    assert (received, refused) == ([1, 2], [1])

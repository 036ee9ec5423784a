"""Channels whose messages are sent by several threads, and to a peer that reads slowly."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.api.wire.channel import Channel
from cenote.api.wire.link_messages import EngineMessage
from cenote.api.wire.link_sockets import make_link
from cenote.api.wire.messages import MetricsResponse
from cenote.api.wire.token_messages import TokenResults

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TIMES = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Receiver:
    """The end of a link that collects what arrives."""

    def __init__(self) -> None:
        self.messages: list[tuple[Any, bytes]] = []
        self.closed = asyncio.Event()
        self.channel: Channel[Any] = Channel(EngineMessage, self._on_message, self.closed.set)

    def _on_message(self, message: Any, array_bytes: Any) -> None:
        self.messages.append((message, bytes(array_bytes)))

    async def wait_for(self, count: int) -> None:
        for _ in range(5000):
            if len(self.messages) >= count:
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"{len(self.messages)} of {count} messages arrived")


@asynccontextmanager
async def open_sender() -> AsyncIterator[tuple[Channel[Any], socket.socket]]:
    """Yield a connected channel and the other end of its link, which nobody reads yet."""
    ours, theirs = make_link()
    closed = asyncio.Event()
    sender: Channel[Any] = Channel(EngineMessage, lambda message, _: None, closed.set)
    await sender.connect(ours)
    yield sender, theirs
    sender.abort()
    await closed.wait()


def make_rows(thread: int, number: int, size: int) -> Any:
    return np.full(size, 1000 * thread + number, dtype=np.float32)


async def test_messages_of_several_threads_arrive_whole_and_in_the_order_of_each_thread() -> None:
    """Sizes from one packet to more than the socket holds, with arrays that are joined to the message or not."""

    receiver = Receiver()
    async with open_sender() as (sender, theirs):

        def send_all(thread: int) -> None:
            for number in range(100):
                rows = make_rows(thread, number, 10 + number % 7 * 20_000)
                sender.send(TokenResults(number, [[(thread,)]], TIMES), [rows])

        threads = [threading.Thread(target=send_all, args=(thread,)) for thread in range(3)]
        for thread in threads:
            thread.start()
        await receiver.channel.connect(theirs)
        await receiver.wait_for(300)
        for thread in threads:
            thread.join()
        receiver.channel.close()
        await receiver.closed.wait()
    numbers: Counter[int] = Counter()
    for message, array_bytes in receiver.messages:
        ((thread_number,),) = message.shapes[0]
        assert message.num_results == numbers[thread_number]
        numbers[thread_number] += 1
        rows = np.frombuffer(array_bytes, np.float32)
        expected = make_rows(thread_number, message.num_results, 10 + message.num_results % 7 * 20_000)
        assert np.array_equal(rows, expected)


async def test_senders_wait_while_the_peer_does_not_read_and_continue_when_it_does() -> None:
    receiver = Receiver()
    async with open_sender() as (sender, theirs):
        num_sent = 0
        while num_sent < 1000:
            sender.send(TokenResults(1, [[(1,)]], TIMES), [np.zeros(50_000, dtype=np.float32)])
            num_sent += 1
            try:
                await asyncio.wait_for(sender.wait_writable(), 0.05)
            except TimeoutError:
                break
        assert 1 < num_sent < 1000
        await receiver.channel.connect(theirs)
        await asyncio.wait_for(sender.wait_writable(), 5)
        await receiver.wait_for(num_sent)
        receiver.channel.close()
        await receiver.closed.wait()


async def test_closing_sends_everything_first() -> None:
    receiver = Receiver()
    async with open_sender() as (sender, theirs):
        sender.send(TokenResults(1, [[(1,)]], TIMES), [np.zeros(5_000_000, dtype=np.float32)])
        sender.send(MetricsResponse([]))
        sender.close()
        sender.send(MetricsResponse([]))
        await receiver.channel.connect(theirs)
        await asyncio.wait_for(receiver.closed.wait(), 5)
    assert [type(message).__name__ for message, _ in receiver.messages] == ["TokenResults", "MetricsResponse"]
    assert len(receiver.messages[0][1]) == 20_000_000


async def test_a_peer_that_has_exited_is_noticed_although_a_thread_writes() -> None:
    ours, theirs = make_link()
    closed = asyncio.Event()
    sender: Channel[Any] = Channel(EngineMessage, lambda message, _: None, closed.set)
    await sender.connect(ours)
    theirs.close()
    thread = threading.Thread(target=lambda: [sender.send(MetricsResponse([])) for _ in range(100)])
    thread.start()
    await asyncio.wait_for(closed.wait(), 5)
    thread.join()
    assert not sender.is_open

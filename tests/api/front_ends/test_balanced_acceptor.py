"""Front-ends that share a listening socket distribute connections evenly."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from tempfile import TemporaryFile
from typing import Any, TypeVar

import pytest

from cenote.api.front_ends.balanced_acceptor import BalancedAcceptor
from cenote.api.front_ends.connection_counts import CLOSED_COUNT, SLOT_BYTES, ConnectionCounts

Result = TypeVar("Result")


def make_counts(*counts: int) -> ConnectionCounts:
    with TemporaryFile() as file:
        file.truncate(SLOT_BYTES * len(counts))
        connection_counts = ConnectionCounts(file.fileno(), len(counts))
    for front_end_id, count in enumerate(counts, start=1):
        connection_counts.set(front_end_id, count)
    return connection_counts


def open_listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    return listener


def run_with_timeout(work: Coroutine[Any, Any, Result], seconds: float = 30.0) -> Result:
    async def wait() -> Result:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(wait())


def has_no_room(message: str) -> bool:
    return False


class CountingServer:
    """Keep the connections that one acceptor has accepted, and their listener count."""

    def __init__(self, counts: ConnectionCounts, front_end_id: int) -> None:
        self.counts, self.front_end_id = counts, front_end_id
        self.clients: list[socket.socket] = []

    def accept_connection(self, client: socket.socket) -> None:
        self.clients.append(client)
        self.counts.set(self.front_end_id, len(self.clients))

    def is_busier(self) -> bool:
        return self.counts.is_busier(self.front_end_id)


def distribute_clients(counts: list[int], num_clients: int) -> list[int]:
    """Return how many connections of a burst each of several acceptors accepts."""

    async def run() -> list[int]:
        connection_counts = make_counts(*counts)
        servers = [CountingServer(connection_counts, number) for number in range(1, len(counts) + 1)]
        with open_listener() as listener:
            clients = [socket.create_connection(listener.getsockname()) for _ in range(num_clients)]
            acceptors = [
                BalancedAcceptor(listener.dup(), s.accept_connection, has_no_room, s.is_busier) for s in servers
            ]
            for acceptor, count in zip(acceptors, counts, strict=True):
                if count != CLOSED_COUNT:
                    acceptor.start()
            while sum(len(server.clients) for server in servers) < num_clients:
                await asyncio.sleep(0.001)
            for acceptor in acceptors:
                acceptor.stop()
                acceptor.listener.close()
        for connection in (*clients, *(client for server in servers for client in server.clients)):
            connection.close()
        return [len(server.clients) for server in servers]

    return run_with_timeout(run())


@pytest.mark.parametrize("num_acceptors", [2, 3, 4])
def test_a_burst_is_distributed_evenly(num_acceptors: int) -> None:
    assert distribute_clients([0] * num_acceptors, 12 * num_acceptors) == [12] * num_acceptors


def test_a_closed_front_end_is_not_waited_for() -> None:
    assert distribute_clients([0, CLOSED_COUNT], 10) == [10, 0]


def test_counts_are_visible_to_every_process_that_maps_the_file() -> None:
    with TemporaryFile() as file:
        file.truncate(SLOT_BYTES * 2)
        one, other = ConnectionCounts(os.dup(file.fileno()), 2), ConnectionCounts(file.fileno(), 2)
    one.set(1, 5)
    other.set(2, 4)

    assert other.is_busier(1)
    assert not one.is_busier(2)


def test_a_busier_front_end_accepts_after_yielding() -> None:
    async def run() -> None:
        server = CountingServer(make_counts(7, 0), 1)  # the second front-end is less busy, but does not accept
        with open_listener() as listener, socket.create_connection(listener.getsockname()):
            acceptor = BalancedAcceptor(listener, server.accept_connection, has_no_room, lambda: True)
            acceptor.start()
            while not server.clients:
                await asyncio.sleep(0.001)
            acceptor.stop()
        server.clients[0].close()

    run_with_timeout(run())

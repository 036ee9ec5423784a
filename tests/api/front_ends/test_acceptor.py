"""Several front-ends at one listening socket share their clients fairly."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Coroutine
from tempfile import TemporaryFile
from typing import Any, TypeVar

import pytest

from cenote.api.front_ends.acceptor import CLOSED_COUNT, SLOT_BYTES, BalancedAcceptor, ConnectionCounts

Result = TypeVar("Result")


def make_counts(*counts: int) -> ConnectionCounts:
    with TemporaryFile() as file:
        file.truncate(SLOT_BYTES * len(counts))
        crowd = ConnectionCounts(file.fileno(), len(counts))
    for number, count in enumerate(counts, start=1):
        crowd.set(number, count)
    return crowd


def open_listener() -> socket.socket:
    found = socket.create_server(("127.0.0.1", 0), backlog=128)
    found.setblocking(False)
    return found


def run_with_timeout(work: Coroutine[Any, Any, Result], seconds: float = 30.0) -> Result:
    async def wait() -> Result:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(wait())


class CountingServer:
    """Those whom one door has let in."""

    def __init__(self, counts: ConnectionCounts, front_end_id: int) -> None:
        self.counts, self.front_end_id = counts, front_end_id
        self.clients: list[socket.socket] = []

    def accept_connection(self, client: socket.socket) -> None:
        self.clients.append(client)
        self.counts.set(self.front_end_id, len(self.clients))

    def is_busier(self) -> bool:
        return self.counts.is_busier(self.front_end_id)


def distribute_clients(counts: list[int], num_clients: int) -> list[int]:
    """How many of a burst of clients come in at each of several doors."""

    async def run() -> list[int]:
        crowd = make_counts(*counts)
        insides = [CountingServer(crowd, number) for number in range(1, len(counts) + 1)]
        with open_listener() as shared:
            clients = [socket.create_connection(shared.getsockname()) for _ in range(num_clients)]
            doors = [BalancedAcceptor(shared.dup(), inside.accept_connection, inside.is_busier) for inside in insides]
            for door, count in zip(doors, counts, strict=True):
                if count != CLOSED_COUNT:
                    door.start()
            while sum(len(inside.clients) for inside in insides) < num_clients:
                await asyncio.sleep(0.001)
            for door in doors:
                door.stop()
                door.listener.close()
        for each in (*clients, *(client for inside in insides for client in inside.clients)):
            each.close()
        return [len(inside.clients) for inside in insides]

    return run_with_timeout(run())


@pytest.mark.parametrize("num_doors", [2, 3, 4])
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
        inside = CountingServer(make_counts(7, 0), 1)  # the second has room, but does not come to the door
        with open_listener() as shared, socket.create_connection(shared.getsockname()):
            door = BalancedAcceptor(shared, inside.accept_connection, lambda: True)
            door.start()
            while not inside.clients:
                await asyncio.sleep(0.001)
            door.stop()
        inside.clients[0].close()

    run_with_timeout(run())


def test_accept_is_retried_when_the_system_is_out_of_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cenote.api.front_ends.acceptor.ACCEPT_RETRY_S", 0.05)

    class Full:
        """A listening socket whose first client finds no room."""

        def __init__(self, inner: socket.socket) -> None:
            self.inner, self.refusals = inner, 1

        def fileno(self) -> int:
            return self.inner.fileno()

        def accept(self) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.inner.accept()

    async def run() -> None:
        inside = CountingServer(make_counts(0), 1)
        with open_listener() as shared, socket.create_connection(shared.getsockname()):
            door = BalancedAcceptor(Full(shared), inside.accept_connection, inside.is_busier)  # type: ignore[arg-type]
            door.start()
            while not inside.clients:
                await asyncio.sleep(0.001)
            door.stop()
        inside.clients[0].close()

    run_with_timeout(run())
    assert "a client cannot be let in: Too many open files" in caplog.text

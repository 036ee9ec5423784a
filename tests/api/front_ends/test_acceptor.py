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

from cenote.api.front_ends.acceptor import CLOSED, SLOT_BYTES, Crowd, Door

Result = TypeVar("Result")


def make_crowd(*counts: int) -> Crowd:
    with TemporaryFile() as file:
        file.truncate(SLOT_BYTES * len(counts))
        crowd = Crowd(file.fileno(), len(counts))
    for number, count in enumerate(counts, start=1):
        crowd.set(number, count)
    return crowd


def listening() -> socket.socket:
    found = socket.create_server(("127.0.0.1", 0), backlog=128)
    found.setblocking(False)
    return found


def within(work: Coroutine[Any, Any, Result], seconds: float = 30.0) -> Result:
    async def wait() -> Result:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(wait())


class Inside:
    """Those whom one door has let in."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.crowd, self.number = crowd, number
        self.clients: list[socket.socket] = []

    def let_in(self, client: socket.socket) -> None:
        self.clients.append(client)
        self.crowd.set(self.number, len(self.clients))

    def is_ahead(self) -> bool:
        return self.crowd.is_ahead(self.number)


def share(counts: list[int], num_clients: int) -> list[int]:
    """How many of a burst of clients come in at each of several doors."""

    async def run() -> list[int]:
        crowd = make_crowd(*counts)
        insides = [Inside(crowd, number) for number in range(1, len(counts) + 1)]
        with listening() as shared:
            clients = [socket.create_connection(shared.getsockname()) for _ in range(num_clients)]
            doors = [Door(shared.dup(), inside.let_in, inside.is_ahead) for inside in insides]
            for door, count in zip(doors, counts, strict=True):
                if count != CLOSED:
                    door.open()
            while sum(len(inside.clients) for inside in insides) < num_clients:
                await asyncio.sleep(0.001)
            for door in doors:
                door.close()
                door.listening.close()
        for each in (*clients, *(client for inside in insides for client in inside.clients)):
            each.close()
        return [len(inside.clients) for inside in insides]

    return within(run())


@pytest.mark.parametrize("num_doors", [2, 3, 4])
def test_a_burst_is_shared_evenly(num_doors: int) -> None:
    assert share([0] * num_doors, 12 * num_doors) == [12] * num_doors


def test_a_door_that_is_closed_is_not_waited_for() -> None:
    assert share([0, CLOSED], 10) == [10, 0]


def test_counts_are_seen_by_whoever_maps_the_same_file() -> None:
    with TemporaryFile() as file:
        file.truncate(SLOT_BYTES * 2)
        one, other = Crowd(os.dup(file.fileno()), 2), Crowd(file.fileno(), 2)
    one.set(1, 5)
    other.set(2, 4)

    assert other.is_ahead(1)
    assert not one.is_ahead(2)


def test_clients_of_a_front_end_that_is_too_busy_come_in_elsewhere_after_a_moment() -> None:
    async def run() -> None:
        inside = Inside(make_crowd(7, 0), 1)  # the second has room, but does not come to the door
        with listening() as shared, socket.create_connection(shared.getsockname()):
            door = Door(shared, inside.let_in, lambda: True)
            door.open()
            while not inside.clients:
                await asyncio.sleep(0.001)
            door.close()
        inside.clients[0].close()

    within(run())


def test_a_system_without_room_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cenote.api.front_ends.acceptor.NO_ROOM_S", 0.05)

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
        inside = Inside(make_crowd(0), 1)
        with listening() as shared, socket.create_connection(shared.getsockname()):
            door = Door(Full(shared), inside.let_in, inside.is_ahead)  # type: ignore[arg-type]
            door.open()
            while not inside.clients:
                await asyncio.sleep(0.001)
            door.close()
        inside.clients[0].close()

    within(run())
    assert "a client cannot be let in: Too many open files" in caplog.text

"""A front-end process and its supervisor: what it does not understand, and when it hears nothing."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cenote.api.front_ends.front_end import FrontEndProcess
from cenote.api.wire import heartbeat
from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import Drain, SupervisorToFrontEnd
from cenote.api.wire.heartbeat import HeartbeatReader, make_heartbeat_file


async def test_a_message_that_cannot_be_handled_does_not_end_it_but_is_no_secret() -> None:
    front_end = FrontEndProcess(0, 0, [], HeartbeatReader(make_heartbeat_file()))
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    supervisor: Channel[object] = Channel(SupervisorToFrontEnd, lambda *message: None, lambda: None)
    await front_end.channel.connect(ours)
    await supervisor.connect(theirs)
    assert front_end.find_control_error() == ""
    supervisor.send(Drain())  # before it has been initialized
    while not front_end.find_control_error():
        await asyncio.sleep(0.002)
    assert "a message of the supervisor could not be handled (AttributeError" in front_end.find_control_error()
    assert front_end.channel.is_open and not front_end.is_disconnected
    supervisor.close()
    front_end.channel.close()
    await front_end.initialized.wait()


async def test_it_notices_a_supervisor_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_TIMEOUT_S", 0.0)

    result = FrontEndProcess(0, 0, [], HeartbeatReader(make_heartbeat_file())).find_control_error()

    assert result.startswith("the supervisor gave no sign of life for 0.")

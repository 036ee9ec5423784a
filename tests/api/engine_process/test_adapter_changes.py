"""Adapters that the supervisor lets an engine process load and unload, and what its front-ends see of that."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.api.engine_process import engine_server
from cenote.api.engine_process.engine_server import EngineServer
from cenote.api.front_ends.remote_engine import RemoteEngine
from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import (
    ChangeAdapter,
    EngineInit,
    EngineLoaded,
    EngineToSupervisor,
    SetAdapters,
    StopEngine,
)
from cenote.api.wire.device_table import DeviceTable, make_device_table
from cenote.api.wire.heartbeat import make_heartbeat_file
from cenote.api.wire.link_sockets import make_link, make_link_sender, send_link
from cenote.config.server import ServerConfig
from cenote.errors import PoolingError
from tests.api.app_client import load_llm
from tests.api.front_ends.remote_link import wait_until
from tests.models.adapters import save_model_and_adapters


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and two adapters."""
    return save_model_and_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with load_llm(folder / "model", lora_modules=(f"first={folder / 'first'}",)) as llm:
        yield llm


class Supervisor:
    """The other end of the control channel of an engine server."""

    def __init__(self, links: socket.socket) -> None:
        self.links = links
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.control: Channel[EngineToSupervisor] = Channel(
            EngineToSupervisor, lambda message, _: self.messages.put_nowait(message), lambda: None
        )

    async def receive(self, kind: type[Any]) -> Any:
        message = await asyncio.wait_for(self.messages.get(), 20)
        assert isinstance(message, kind), message
        return message

    async def change(self, name: str, path: Path | None, *, in_place: bool = False) -> None:
        await self.control.call(ChangeAdapter(name, None if path is None else str(path), in_place))

    async def connect_front_end(self) -> RemoteEngine:
        remote = RemoteEngine()
        ours, theirs = make_link()
        await remote.connect(ours)
        send_link(self.links, theirs, 1)
        return remote


@asynccontextmanager
async def serve_engine(llm: LLM, adapters: dict[str, str]) -> AsyncIterator[Supervisor]:
    """Run an engine server in this process until it has loaded the model, and perhaps these adapters."""
    control, engine_control = socket.socketpair()
    links, engine_links = make_link_sender()
    table_fd, heartbeat_fd = make_device_table(), make_heartbeat_file()
    for sock in (control, engine_control):
        sock.setblocking(False)
    supervisor, server = Supervisor(links), EngineServer(lambda init: llm.engine, DeviceTable(table_fd))
    serving = asyncio.create_task(server.serve(engine_control, engine_links, heartbeat_fd))
    await supervisor.control.connect(control)
    supervisor.control.send(EngineInit(ServerConfig(), b"", adapters))
    await supervisor.receive(EngineLoaded)
    try:
        yield supervisor
    finally:
        supervisor.control.send(StopEngine())
        assert await asyncio.wait_for(serving, 20) == 0
        llm.engine.on_stopped = lambda: None  # which would tell this event loop
        for fd in (table_fd, heartbeat_fd):
            os.close(fd)


@pytest.fixture(autouse=True)
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine servers neither change the log of the tests nor end their process with the supervisor."""
    monkeypatch.setattr(engine_server.log_config, "configure_logging", lambda settings: None)
    monkeypatch.setattr(os, "_exit", lambda status: None)


async def test_a_change_is_answered_when_every_front_end_knows(llm: LLM, folder: Path) -> None:
    async with serve_engine(llm, {}) as supervisor:
        supervisor.control.send(SetAdapters({"first": str(folder / "first")}, []))
        remotes = [await supervisor.connect_front_end() for _ in range(2)]
        await wait_until(lambda: all(remote.availability.is_available for remote in remotes))

        def list_adapters() -> list[tuple[str, ...]]:
            return [remote.model_info.adapters for remote in remotes]

        await supervisor.change("late", folder / "late")
        assert list_adapters() == [("first", "late")] * 2
        with pytest.raises(PoolingError, match="has already been loaded"):
            await supervisor.change("late", folder / "late")
        await supervisor.change("late", folder / "late", in_place=True)
        await supervisor.change("late", None)
        assert list_adapters() == [("first",)] * 2
        with pytest.raises(PoolingError, match="cannot be found"):
            await supervisor.change("late", None)
        for remote in remotes:
            remote.close()


async def test_requests_are_served_only_with_the_adapters_that_the_model_has_by_now(llm: LLM, folder: Path) -> None:
    async with serve_engine(llm, {}) as supervisor:
        remote = await supervisor.connect_front_end()
        await asyncio.sleep(0.1)
        assert not remote.availability.is_available
        # one was unloaded and another one loaded while the process was being started
        supervisor.control.send(SetAdapters({"late": str(folder / "late")}, []))
        await wait_until(lambda: remote.availability.is_available)
        assert remote.model_info.adapters == ("late",)
        remote.close()


async def test_an_adapter_that_cannot_be_loaded_stops_no_other_and_is_not_tried_again(
    llm: LLM, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []
    load_adapter = llm.engine.load_adapter

    async def record(name: str, path: str, *, in_place: bool = False) -> None:
        tried.append(name)
        await load_adapter(name, path, in_place=in_place)

    monkeypatch.setattr(llm.engine, "load_adapter", record)

    # "gone" could not be loaded with the model; "first" was, from the options of the server
    async with serve_engine(llm, {"gone": "/gone", "first": str(folder / "late")}) as supervisor:
        remote = await supervisor.connect_front_end()
        adapters = {"gone": "/gone", "missing": "/missing", "first": str(folder / "late"), "late": str(folder / "late")}
        supervisor.control.send(SetAdapters(adapters, []))
        await wait_until(lambda: remote.availability.is_available)
        assert remote.model_info.external_adapters == {name: str(folder / "late") for name in ("first", "late")}
        remote.close()

    assert tried == ["first", "missing", "late"]
    assert "the adapter missing could not be changed while the engine was started" in caplog.text


async def test_an_adapter_that_was_loaded_from_the_same_path_meanwhile_is_read_again(
    llm: LLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, bool]] = []

    async def record(name: str, path: str, *, in_place: bool = False) -> None:
        tried.append((name, in_place))

    monkeypatch.setattr(llm.engine, "load_adapter", record)

    async with serve_engine(llm, {}) as supervisor:
        supervisor.control.send(SetAdapters({"first": str(folder / "first")}, ["first", "unloaded"]))
        await wait_until(lambda: bool(tried))

    assert tried == [("first", True)]

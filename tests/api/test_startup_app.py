"""The server before its routes are imported: it answers health checks, and lets other requests wait."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

import httpx
import pytest
from starlette.types import ASGIApp

from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.front_ends.connection_counts import SLOT_BYTES
from cenote.api.front_ends.front_end import FrontEndProcess, FrontEndServer
from cenote.api.server import ApiServer
from cenote.api.startup_app import StartupApp
from cenote.api.wire.control_messages import ModelState, ModelStates
from cenote.api.wire.heartbeat import HeartbeatReader, make_heartbeat_file
from cenote.api.wire.link_sockets import make_link_sender
from cenote.config.server import ServerConfig
from cenote.errors import LoadError
from cenote.utils.shared_memory import make_shared_memory

# modules that take long to import, and are not needed for the response to a health check
SLOW_MODULES = {
    *("numpy", "jinja2", "tokenizers", "cenote.api.dialects", "cenote.api.app", "cenote.api.front_ends.remote_engine"),
    *("cenote.cli.admin_client", "cenote.cli.text_commands"),
}


class SlowBuild:
    """Builds the application when the test lets it."""

    def __init__(self, app_state: AppState) -> None:
        self.app_state = app_state
        self.may_finish = threading.Event()
        self.num_builds = 0

    def __call__(self) -> ASGIApp:
        self.num_builds += 1
        assert self.may_finish.wait(60)
        return build_app(self.app_state)


def run(app_state: AppState, use: Callable[[httpx.AsyncClient, SlowBuild], Awaitable[None]]) -> SlowBuild:
    build = SlowBuild(app_state)

    async def call() -> None:
        transport = httpx.ASGITransport(StartupApp(app_state, build))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            await use(client, build)

    try:
        asyncio.run(call())
    finally:
        build.may_finish.set()
    return build


def test_only_health_checks_are_answered_before_the_routes_are_imported() -> None:
    async def use(client: httpx.AsyncClient, build: SlowBuild) -> None:
        waiting = [
            asyncio.create_task(client.post("/v1/embeddings", json={"input": "a"})),
            asyncio.create_task(client.post("/health")),
            asyncio.create_task(client.get("/version")),
        ]
        health, live = await client.get("/health"), await client.get("/health/live")
        await asyncio.sleep(0.05)

        assert (health.status_code, health.json()["state"]) == (503, "loading")
        assert (live.status_code, live.json()["state"]) == (200, "loading")
        assert health.headers["x-request-id"]
        assert not any(task.done() for task in waiting)
        build.may_finish.set()
        embeddings, wrong_method, version = await asyncio.gather(*waiting)
        assert (embeddings.status_code, embeddings.headers["retry-after"]) == (503, "1")
        assert wrong_method.status_code == 405 and "error" in wrong_method.json()
        assert version.status_code == 200

    assert run(AppState(ServerConfig()), use).num_builds == 1


def test_health_checks_need_no_api_key() -> None:
    async def use(client: httpx.AsyncClient, build: SlowBuild) -> None:
        assert (await client.get("/health/live")).status_code == 200

    run(AppState(ServerConfig(api_key=("secret",))), use)


def test_a_server_is_not_reported_as_ready_before_its_routes_are_imported() -> None:
    app_state = AppState(ServerConfig())
    app_state.models.first.is_required = False  # loaded on the first request

    async def use(client: httpx.AsyncClient, build: SlowBuild) -> None:
        waiting = asyncio.create_task(client.get("/health/ready"))
        await asyncio.sleep(0.05)

        assert not waiting.done()
        build.may_finish.set()
        assert (await waiting).status_code == 200

    run(app_state, use)


def test_a_server_whose_routes_cannot_be_built_stops_with_the_error() -> None:
    class BrokenServer(ApiServer):
        def build_app(self) -> ASGIApp:
            raise LoadError("two routes have the same path")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = BrokenServer(AppState(ServerConfig()), [listener], load_engine=None)
        server.run([listener])

    assert isinstance(server.failure, LoadError)


async def test_what_the_supervisor_reports_before_the_imports_is_not_lost() -> None:
    app_state = AppState(ServerConfig())

    front_end = FrontEndProcess(make_shared_memory(SLOT_BYTES), 0, [], HeartbeatReader(make_heartbeat_file()))
    front_end.links, supervisor = make_link_sender()
    front_end.server = FrontEndServer(app_state, front_end, 1)
    for names in (["mini"], ["mini", "large"]):
        states = [ModelState(name, (), name, True, "loading", "", True, True, (), 0, b"") for name in names]
        front_end.channel.on_message(ModelStates(states), b"")
    assert len(app_state.models) == 1

    with supervisor, front_end.links:
        front_end.server.on_app_built()
    assert [model.name for model in app_state.models] == ["mini", "large"]


@pytest.mark.parametrize("module", ["cenote.api.supervisor.supervisor", "cenote.api.front_ends.front_end"])
def test_modules_that_take_long_are_imported_after_the_server_listens(module: str) -> None:
    code = f"import sys, cenote.cli.commands, cenote.cli.serve, {module}; print(*sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not SLOW_MODULES.intersection(result.stdout.split())

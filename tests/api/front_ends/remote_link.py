"""Engines and the RemoteEngines connected to them, with both ends of the link in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from cenote.api.engine_process import engine_server
from cenote.api.engine_process.engine_server import FrontEndLink
from cenote.api.engine_process.token_batcher import TokenBatcher
from cenote.api.front_ends.remote_engine import RemoteEngine
from cenote.api.wire.link_sockets import make_link
from cenote.protocol.engine import Engine


async def attach_engine(remote: RemoteEngine, engine: Engine, engine_number: int = 0) -> FrontEndLink:
    """Connect a RemoteEngine with an engine, and return the engine's end of the link."""
    info = engine_server.make_renderer_info(engine)
    server = SimpleNamespace(
        renderer_info=info,
        token_batcher=None if info is None else TokenBatcher(engine),  # type: ignore[arg-type]
        engine_number=engine_number,
    )
    front_end_sock, engine_sock = make_link()
    link = FrontEndLink(lambda link: None)
    await link.channel.connect(engine_sock)
    ready, on_ready = asyncio.Event(), remote.on_ready
    remote.on_ready = ready.set
    await remote.connect(front_end_sock)
    link.set_engine(engine, server)  # type: ignore[arg-type]
    await ready.wait()
    remote.on_ready = on_ready
    return link


@asynccontextmanager
async def connect_remote(engine: Engine) -> AsyncIterator[tuple[RemoteEngine, FrontEndLink]]:
    """Yield a RemoteEngine and the engine's end of its link."""
    remote = RemoteEngine()
    link = await attach_engine(remote, engine)
    try:
        yield remote, link
    finally:
        remote.close()
        link.channel.close()
        await asyncio.sleep(0.01)


def call_both(engine: Engine, call: Callable[[Engine], Awaitable[Any]]) -> tuple[Any, Any]:
    """Return the result of the engine itself and of a remote engine connected to it."""

    async def both() -> tuple[Any, Any]:
        async with connect_remote(engine) as (remote, _):
            return await call(engine), await asyncio.wait_for(call(remote), 20)

    return asyncio.run(both())


async def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("the condition did not become true")

"""The front-end inside the supervisor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cenote.api.app_state import AppState
from cenote.api.supervisor.local_front_end import LocalFrontEnd
from cenote.config.server import ServerConfig


def test_an_engine_that_is_released_too_late_disturbs_nobody() -> None:
    """The model was unloaded although requests in flight had not ended in time; they end afterwards."""

    def ignore(*args: Any) -> Any: ...

    async def run() -> None:
        front_end = LocalFrontEnd(AppState(ServerConfig()), [], ignore, ignore, ignore, ignore)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(front_end.release_engine(7), 0.01)
        front_end.on_released(7)

    asyncio.run(run())

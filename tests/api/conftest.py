"""One event loop for all requests; engines that return token ids."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from tests.engine.conftest import make_engine  # noqa: F401  # a fixture


@pytest.fixture(scope="session", autouse=True)
def shared_event_loop() -> Iterator[None]:
    """Run all requests in one thread: a `TestClient` starts a thread with an event loop for every request otherwise."""
    with start_blocking_portal() as portal, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(TestClient, "portal", portal)
        yield

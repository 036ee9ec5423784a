"""Unexpected exceptions: clients get a stable message and the request id, the log the exception."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.wire.codec_errors import deserialize_error, serialize_error
from cenote.config.server import ServerConfig
from cenote.engine.engine import PoolingEngine
from cenote.errors import EngineStopped, PoolingError, make_internal_error
from tests.api.front_ends.remote_link import connect_remote
from tests.engine.conftest import MakeEngine, make_request

SECRET = "/srv/models/secret.bin"


class FatalError(BaseException):
    pass


def fail(batch: object) -> None:
    raise RuntimeError(f"cannot read {SECRET}")


def fail_fatally(batch: object) -> None:
    raise FatalError(SECRET)


def post(engine: PoolingEngine) -> Any:
    app_state = AppState(ServerConfig())
    app_state.set_engine(engine)
    client = TestClient(build_app(app_state))
    return client.post("/v1/embeddings", json={"input": "a"}, headers={"X-Request-Id": "r7"})


def render_badly(*args: Any) -> Any:
    raise ZeroDivisionError(SECRET)


def test_the_exception_of_a_batch_is_logged_and_not_sent(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "cenote"):
        reply = post(make_engine(fault=fail))

    message = "the model failed on this input; the reason is in the server log"
    assert (reply.status_code, reply.json()["error"]["message"]) == (500, f"{message}, request r7")
    assert SECRET not in reply.text and SECRET in caplog.text
    assert f"request r7: {message}" in caplog.text


def test_an_exception_of_rendering_is_logged_and_not_sent(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    monkeypatch.setattr(engine.renderer, "render", render_badly)
    reply = post(engine)

    assert reply.json()["error"]["message"].startswith("the input could not be read; the reason is in the server log")
    assert SECRET not in reply.text and SECRET in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_reason_of_a_crash_is_not_sent(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=fail_fatally)
    first, second = post(engine), post(engine)

    for reply in (first, second):
        assert reply.status_code == 503 and SECRET not in reply.text
        assert reply.json()["error"]["message"] == "the engine crashed; the reason is in the server log"


async def test_details_of_an_internal_error_do_not_leave_the_engine_process(make_engine: MakeEngine) -> None:
    async with connect_remote(make_engine(fault=fail)) as (remote, _):
        for request in (make_request([[7]]), make_request([[7]], mm_processor_kwargs={"a": 1})):  # both ways
            with pytest.raises(PoolingError) as caught:
                await remote.pool(request)
            assert str(caught.value) == "the model failed on this input; the reason is in the server log"


def test_python_callers_see_the_exception() -> None:
    error = make_internal_error("it failed", ValueError("why"), EngineStopped)

    assert isinstance(error, EngineStopped) and str(error) == "it failed: ValueError: why"
    assert str(deserialize_error(serialize_error(error))) == "it failed; the reason is in the server log"

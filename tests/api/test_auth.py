"""Who may ask: keys from options and files, in every header that clients use, on every path but health."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from starlette.websockets import WebSocketDisconnect

from cenote import LLM
from cenote.api import auth as module
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.auth import ApiKeyStore
from cenote.api.system_routes import make_system_routes
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, LoadError

from .app_client import make_client

PUBLIC_ROUTES = ["/health", "/health/live", "/health/ready", "/ping"]


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


@pytest.fixture
def protected(llm: LLM) -> TestClient:
    return make_client(llm, api_key=("first", "second"))


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first"},
        {"Authorization": "bearer  second "},
        {"Authorization": "second"},
        {"api-key": "first"},
        {"X-API-Key": "first"},
        {"Authorization": "Bearer wrong", "x-api-key": "second"},
    ],
    ids=str,
)
def test_a_key_is_accepted_in_any_supported_header(headers: dict[str, str], guarded: TestClient) -> None:
    assert guarded.get("/version", headers=headers).status_code == 200
    assert guarded.post("/v1/embeddings", headers=headers, json={"input": "a"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": ""},
        {"Authorization": "Bearer firs"},
        {"Authorization": "Bearer first2"},
        {"Authorization": "Basic first"},
        {"Authorization": "Bearer first, second"},
        {"api-key": ""},
        {"Cookie": "first"},
    ],
    ids=str,
)
def test_requests_without_a_key_are_refused(headers: dict[str, str], guarded: TestClient) -> None:
    reply = guarded.get("/version", headers=headers)

    assert reply.status_code == 401
    assert reply.json()["error"]["type"] == "Unauthorized" and reply.json()["code"] == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["x-request-id"]


def test_every_route_of_the_app_needs_a_key_unless_it_is_about_health(llm: LLM) -> None:
    service = AppState(ServerConfig(api_key=("k",), enable_tokenizer_info_endpoint=True))
    service.set_engine(llm.engine)
    client = TestClient(build_app(service))
    starlette: Any = client.app
    while not hasattr(starlette, "routes"):
        starlette = starlette.app
    paths = {route.path for route in starlette.routes if isinstance(route, Route)}

    answers = {
        (method, path): client.request(method, path.replace("{name:path}", "x")).status_code
        for path in sorted(paths)
        for method in ("GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE")
    }

    opened = {path for (_, path), status in answers.items() if status != 401}
    assert len(paths) > len(make_system_routes(service, [])) and opened == set(PUBLIC_ROUTES)
    assert all(answers["POST", path] == 401 for path in PUBLIC_ROUTES if path != "/ping")


def status_of(app: ASGIApp, path: str, host: str) -> int:
    """What the app says to a path exactly as given: clients tidy theirs up before they send them."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    asyncio.run(app({**scope, "headers": [(b"host", host.encode())], "client": None}, receive, send))  # type: ignore[arg-type]
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "path",
    [
        "//health//..//version",
        "/health/",
        "/health//",
        "/health/..",
        "/health/../version",
        "/HEALTH",
        "/health;/version",
        "/v1/../health",
        "/health\n",
        "/health\x00",
        "health",
        "/nowhere",
        "/version",
        "/",
        "",
    ],
)
@pytest.mark.parametrize("host", ["testserver", "x/health?", "x/health#"])
def test_paths_similar_to_health_need_a_key(path: str, host: str, guarded: TestClient) -> None:
    assert status_of(guarded.app, path, host) == 401


def test_duplicate_slashes_are_removed_before_authentication(guarded: TestClient) -> None:
    """Authentication and routing see the same path: health is public, everything else needs a key."""
    assert status_of(guarded.app, "//health", "testserver") == 200
    assert status_of(guarded.app, "//version", "testserver") == 401
    assert status_of(guarded.app, "//v1//models", "testserver") == 401


def test_a_root_path_does_not_bypass_authentication(llm: LLM) -> None:
    client = make_client(llm, api_key=("k",), root_path="/api")

    assert client.get("/api/health").status_code == 200
    assert client.get("/api/version").status_code == 401
    assert client.get("/api/api/health").status_code == 401


def test_without_configured_keys_requests_are_accepted(llm: LLM) -> None:
    assert make_client(llm).get("/version").status_code == 200


def test_websockets_are_refused(guarded: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), guarded.websocket_connect("/health"):
        pass


def test_an_empty_key_is_refused_at_the_start() -> None:
    with pytest.raises(BadRequest, match="an empty api_key"):
        ServerConfig(api_key=("",))


@pytest.fixture
def reload_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELOAD_INTERVAL_S", 0.0)


def test_keys_in_a_file_change_while_the_server_runs(tmp_path: Path, impatient: None) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n\n  other  \n")
    keys = ApiKeyStore(["fixed"], str(file))
    assert len(keys) == 3 and keys.key_id(bearer("old")) and keys.key_id(bearer("other"))

    file.write_text("new and longer\n")

    assert keys.key_id(bearer("new and longer")) and keys.key_id(bearer("fixed"))
    assert keys.key_id(bearer("old")) is None


def test_a_mounted_secret_is_a_folder_whose_link_is_swapped(tmp_path: Path, impatient: None) -> None:
    for version, text in (("..1", "monday"), ("..2", "tuesday")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "token").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")
    keys = ApiKeyStore([], str(tmp_path))
    assert keys.key_id(bearer("monday")) and len(keys) == 1

    (tmp_path / "..new").symlink_to("..2")
    os.replace(tmp_path / "..new", tmp_path / "..data")

    assert keys.key_id(bearer("tuesday"))
    assert keys.key_id(bearer("monday")) is None


def test_an_emptied_key_file_refuses_everybody(tmp_path: Path, impatient: None) -> None:
    file = tmp_path / "keys"
    file.write_text("only\n")
    keys = ApiKeyStore([], str(file))

    file.write_text("")

    assert keys.is_required and keys.key_id(bearer("only")) is None and keys.key_id(bearer("")) is None


def test_a_file_that_disappears_leaves_the_keys_as_they_were(
    tmp_path: Path, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("only\n")
    keys = ApiKeyStore([], str(file))

    file.unlink()

    with caplog.at_level(logging.WARNING, "cenote"):
        assert keys.key_id(bearer("only"))
    assert "stay valid" in caplog.text


def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No such file"):
        ApiKeyStore([], str(tmp_path / "missing"))
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(LoadError, match="holds no key; write one per line"):
        ApiKeyStore(["given"], str(tmp_path / "empty"))


def test_a_key_is_known_by_the_first_digits_of_its_digest() -> None:
    assert ApiKeyStore(["secret"]).key_id(bearer("secret")) == "2bb80d53"  # sha256 of it


@pytest.fixture
def cors_client(llm: LLM) -> TestClient:
    return make_client(llm, api_key=("k",), allowed_origins=("https://app.example",))


def test_browsers_may_not_call_from_other_sites_unless_asked_for(llm: LLM) -> None:
    headers = {"Origin": "https://app.example"}

    assert "access-control-allow-origin" not in make_client(llm).get("/version", headers=headers).headers


def test_a_cors_preflight_needs_no_key(abroad: TestClient) -> None:
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}

    reply = abroad.options("/v1/embeddings", headers={"Origin": "https://app.example", **asking})
    other = abroad.options("/v1/embeddings", headers={"Origin": "https://evil.example", **asking})

    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in reply.headers["access-control-allow-headers"].lower()
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
    assert reply.headers["x-request-id"]


def test_a_page_of_an_allowed_origin_can_read_even_a_refusal(abroad: TestClient) -> None:
    refused = abroad.get("/version", headers={"Origin": "https://app.example"})

    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-request-id" in refused.headers["access-control-expose-headers"]


def test_every_origin_with_cookies_is_refused_at_the_start() -> None:
    with pytest.raises(BadRequest, match="name the allowed_origins"):
        ServerConfig(allowed_origins=("*",), allow_credentials=True)

"""API keys from options and files, in all supported headers, required on every path except health."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from starlette.websockets import WebSocketDisconnect

from cenote import LLM
from cenote.api import api_keys as module
from cenote.api.api_keys import ApiKeyStore
from cenote.api.log_config import PAGE_FILES
from cenote.cli.main import main
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, LoadError

from .app_client import list_served_routes, make_client

ROOT = Path(__file__).parents[2]
RULE = "every route except health checks, the pages / and /docs, and /v1/cluster/auth"
PAGES = ("serving", "security", "reliability", "migration", "vllm")
POSTABLE = {"/ping"}  # open to POST as well


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
def test_a_key_is_accepted_in_any_supported_header(headers: dict[str, str], protected: TestClient) -> None:
    assert protected.get("/version", headers=headers).status_code == 200
    assert protected.post("/v1/embeddings", headers=headers, json={"input": "a"}).status_code == 200


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
def test_requests_without_a_key_are_refused(headers: dict[str, str], protected: TestClient) -> None:
    reply = protected.get("/version", headers=headers)

    assert reply.status_code == 401
    assert reply.json()["error"]["type"] == "Unauthorized" and reply.json()["code"] == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["x-request-id"]


def test_with_admin_keys_only_all_routes_need_one_and_the_refusal_says_so(llm: LLM) -> None:
    client = make_client(llm, admin_api_key=("ops",))

    refused = client.get("/v1/models")

    assert refused.status_code == 401
    assert "the server has only admin keys, which all routes require; --api-key adds keys" in refused.json()["message"]
    assert client.get("/v1/models", headers={"Authorization": "Bearer ops"}).status_code == 200


def test_the_routes_that_need_no_key_are_those_of_the_documentation(llm: LLM) -> None:
    client = make_client(llm, api_key=("k",), enable_tokenizer_info_endpoint=True, allow_runtime_lora_updating=True)
    client.headers["accept"] = "text/html"  # as a browser, which gets the playground
    rule = (ROOT / "docs/serving.md").read_text().partition("Open are exactly")[2].partition("A key is sent")[0]
    documented = set(re.findall(r"`(?:GET )?(/[^`]*)`", rule))

    statuses = {
        (method, path): client.request(method, re.sub("{.*}", "x", path)).status_code
        for path in list_served_routes(client)
        for method in ("GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE")
    }

    files = {path: prefix for _, path in statuses for prefix in PAGE_FILES if path.startswith(prefix)}
    assert {files.get(path, path) for (_, path), status in statuses.items() if status != 401} == documented
    assert {path for (method, path), status in statuses.items() if status != 401 and method == "POST"} == POSTABLE
    assert len(documented) < len(statuses) / 6 / 3  # most routes need a key


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", *(f"docs/{name}.md" for name in PAGES)])
def test_every_page_says_the_same_of_routes_that_need_no_key(page: str) -> None:
    text = " ".join((ROOT / page).read_text().replace("`", "").split())

    assert RULE in text
    assert text.count(RULE) == len(re.findall("every (?:route|path) (?:but|except)", text))


def test_the_help_of_the_command_says_it_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serve", "--help"])

    assert RULE in " ".join(capsys.readouterr().out.split())


def get_status(app: ASGIApp, path: str, host: str) -> int:
    """Return the status for exactly this path: HTTP clients normalise paths before they send them."""
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
def test_paths_similar_to_health_need_a_key(path: str, host: str, protected: TestClient) -> None:
    assert get_status(protected.app, path, host) == 401


def test_a_root_path_does_not_bypass_authentication(llm: LLM) -> None:
    client = make_client(llm, api_key=("k",), root_path="/api")

    assert client.get("/api/health").status_code == 200
    assert client.get("/api/version").status_code == 401
    assert client.get("/api/api/health").status_code == 401


def test_without_configured_keys_requests_are_accepted(llm: LLM) -> None:
    assert make_client(llm).get("/version").status_code == 200


def test_websockets_are_refused(protected: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), protected.websocket_connect("/health"):
        pass


def test_an_empty_key_is_refused_at_the_start() -> None:
    with pytest.raises(BadRequest, match="api_key must not be empty"):
        ServerConfig(api_key=("",))


@pytest.fixture
def reload_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELOAD_INTERVAL_S", 0.0)


def test_keys_in_a_file_change_while_the_server_runs(tmp_path: Path, reload_immediately: None) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n\n  other  \n")
    keys = ApiKeyStore(["fixed"], str(file))
    assert len(keys) == 3 and keys.find(bearer("old")) and keys.find(bearer("other"))

    file.write_text("new and longer\n")

    assert keys.find(bearer("new and longer")) and keys.find(bearer("fixed"))
    assert keys.find(bearer("old")) is None


def test_a_mounted_secret_is_reloaded_when_its_link_is_swapped(tmp_path: Path, reload_immediately: None) -> None:
    for version, text in (("..1", "monday"), ("..2", "tuesday")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "token").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")
    keys = ApiKeyStore([], str(tmp_path))
    assert keys.find(bearer("monday")) and len(keys) == 1

    (tmp_path / "..new").symlink_to("..2")
    os.replace(tmp_path / "..new", tmp_path / "..data")

    assert keys.find(bearer("tuesday"))
    assert keys.find(bearer("monday")) is None


def test_an_emptied_key_file_refuses_all_requests(tmp_path: Path, reload_immediately: None) -> None:
    file = tmp_path / "keys"
    file.write_text("only\n")
    keys = ApiKeyStore([], str(file))

    file.write_text("")

    assert keys.is_required and keys.find(bearer("only")) is None and keys.find(bearer("")) is None


def test_a_deleted_key_file_leaves_the_keys_unchanged(
    tmp_path: Path, reload_immediately: None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("only\n")
    keys = ApiKeyStore([], str(file))

    file.unlink()

    with caplog.at_level(logging.WARNING, "cenote"):
        assert keys.find(bearer("only"))
    assert "stay valid" in caplog.text


def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No such file"):
        ApiKeyStore([], str(tmp_path / "missing"))
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(LoadError, match="contains no keys; expected one key per line"):
        ApiKeyStore(["given"], str(tmp_path / "empty"))


@pytest.fixture
def cors_client(llm: LLM) -> TestClient:
    return make_client(llm, api_key=("k",), allowed_origins=("https://app.example",))


def test_cross_origin_calls_are_not_allowed_by_default(llm: LLM) -> None:
    headers = {"Origin": "https://app.example"}

    assert "access-control-allow-origin" not in make_client(llm).get("/version", headers=headers).headers


def test_a_cors_preflight_needs_no_key(cors_client: TestClient) -> None:
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }

    reply = cors_client.options("/v1/embeddings", headers={"Origin": "https://app.example", **preflight})
    other = cors_client.options("/v1/embeddings", headers={"Origin": "https://evil.example", **preflight})

    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in reply.headers["access-control-allow-headers"].lower()
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
    assert reply.headers["x-request-id"]


def test_an_allowed_origin_can_read_error_responses(cors_client: TestClient) -> None:
    refused = cors_client.get("/version", headers={"Origin": "https://app.example"})

    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-request-id" in refused.headers["access-control-expose-headers"]


def test_every_origin_with_cookies_is_refused_at_the_start() -> None:
    with pytest.raises(BadRequest, match="list the allowed_origins"):
        ServerConfig(allowed_origins=("*",), allow_credentials=True)


@pytest.mark.parametrize("headers", [{"host": "[1:2]"}, {"origin": "http://[::1"}, {"host": "["}], ids=str)
def test_names_that_are_none_are_those_of_foreign_pages(headers: dict[str, str], llm: LLM) -> None:
    local = TestClient(make_client(llm).app, base_url="http://localhost", client=("127.0.0.1", 1))

    assert local.get("/admin/models", headers=headers).status_code == 403

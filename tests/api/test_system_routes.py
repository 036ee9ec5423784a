"""Health, model, load and other system routes, in every state of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM, __version__
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.served_models import ServedModel
from cenote.config.server import ServerConfig
from cenote.engine.engine import PoolingEngine
from cenote.errors import BadRequest, EngineStopped
from cenote.loading.loaded_model import LoadedModel
from cenote.protocol.requests import PoolRequest


def make_app_state(llm: LLM, **settings: Any) -> AppState:
    app_state = AppState(ServerConfig(**settings))
    app_state.set_engine(llm.engine)
    return app_state


def make_client(llm: LLM, **settings: Any) -> TestClient:
    return TestClient(build_app(make_app_state(llm, **settings)))


def test_ping_of_a_ready_server_is_empty(llm: LLM) -> None:
    reply = make_client(llm).get("/ping")

    assert (reply.status_code, reply.content) == (200, b"")


def test_sagemaker_pings_with_post_as_well(llm: LLM) -> None:
    assert make_client(llm).post("/ping").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/ping"])
def test_a_loading_server_reports_its_state_and_the_seconds_so_far(path: str) -> None:
    reply = TestClient(build_app(AppState(ServerConfig()))).get(path)

    assert reply.status_code == 503
    assert reply.json()["state"] == "loading" and reply.json()["seconds"] >= 0
    assert "the model is loading" in reply.json()["error"]["message"]
    assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/rerank"])
def test_requests_are_refused_while_the_model_is_loading(path: str) -> None:
    reply = TestClient(build_app(AppState(ServerConfig()))).post(path, json={"input": "a"})

    assert reply.status_code == 503
    assert reply.headers["retry-after-ms"] == "1000"


def test_a_loading_server_is_alive() -> None:
    reply = TestClient(build_app(AppState(ServerConfig()))).get("/health/live")

    assert (reply.status_code, reply.json()["state"]) == (200, "loading")


def test_a_draining_server_responds_and_asks_clients_to_reconnect_elsewhere(llm: LLM) -> None:
    app_state = make_app_state(llm)
    client = TestClient(build_app(app_state))

    app_state.start_draining()

    replies = {path: client.get(path) for path in ("/health", "/health/ready", "/health/live", "/version", "/nowhere")}
    embedded = client.post("/v1/embeddings", json={"input": "hello"})
    statuses = {path: reply.status_code for path, reply in replies.items()}
    assert statuses == {"/health": 503, "/health/ready": 503, "/health/live": 200, "/version": 200, "/nowhere": 404}
    assert replies["/health/ready"].json()["state"] == "draining"
    assert embedded.status_code == 200
    assert all(reply.headers["connection"] == "close" for reply in (*replies.values(), embedded))


def test_a_dead_engine_is_neither_ready_nor_alive(loaded: LoadedModel, llm: LLM) -> None:
    engine = PoolingEngine(loaded, llm.config)
    app_state = AppState(ServerConfig())
    app_state.set_engine(engine)
    client = TestClient(build_app(app_state))

    engine.stop(EngineStopped("the device is gone"))

    for path in ("/health", "/health/ready", "/health/live"):
        assert client.get(path).status_code == 503
        assert client.get(path).json()["state"] == "stopped"
        assert "the device is gone" in client.get(path).json()["message"]


def test_a_model_that_does_not_answer_says_why_and_since_when() -> None:
    app_state = AppState(ServerConfig())
    failed, loading = ServedModel("failed"), ServedModel("other")
    failed.report("failed", "the bucket is away", None, since=1000.5)
    app_state.models.set([failed, loading])
    client = TestClient(build_app(app_state))

    for path in ("/health", "/health/ready"):
        assert client.get(path).json()["models"] == [
            {"name": "failed", "state": "failed", "reason": "the bucket is away", "since": 1000.5}
        ]
    cards = {card["id"]: (card["reason"], card["since"]) for card in client.get("/v1/models").json()["data"]}
    assert cards == {"failed": ("the bucket is away", 1000.5), "other": (None, None)}
    assert client.get("/health/live").status_code == 200


def test_a_server_is_alive_while_all_its_models_fail() -> None:
    app_state = AppState(ServerConfig())
    model = ServedModel("failed")
    model.report("failed", "5 engine processes failed within 60 s", None)
    app_state.models.set([model])
    client = TestClient(build_app(app_state))

    statuses = {path: client.get(path).status_code for path in ("/health", "/health/ready", "/health/live")}

    assert statuses == {"/health": 503, "/health/ready": 503, "/health/live": 200}


def test_a_server_whose_supervisor_cannot_act_is_ready_but_not_alive(llm: LLM) -> None:
    app_state = make_app_state(llm)
    app_state.find_control_error = lambda: "the supervisor gave no sign of life for 9.0 s"
    client = TestClient(build_app(app_state))

    live = client.get("/health/live")

    assert live.status_code == 503
    assert "no sign of life for 9.0 s: engines that exit are not replaced" in live.json()["message"]
    assert client.get("/health/ready").status_code == 200


def test_the_version_is_returned(llm: LLM) -> None:
    assert make_client(llm).get("/version").json() == {"version": __version__}


def test_load_counts_model_requests_only(llm: LLM) -> None:
    app_state = make_app_state(llm)
    app = build_app(app_state)
    loads: list[int] = []

    class LoadProbeEngine:
        model_info, dead_error, status = llm.engine.model_info, None, "ready"

        async def pool(self, request: PoolRequest) -> Any:
            reply = await asyncio.to_thread(TestClient(app).get, "/load")
            loads.append(reply.json()["server_load"])
            raise BadRequest("enough")

    app_state.set_engine(LoadProbeEngine())  # type: ignore[arg-type]
    client = TestClient(app)
    client.post("/v1/embeddings", json={"input": "a"})

    assert loads == [1]
    assert client.get("/load").json() == {"server_load": 0}


def test_every_served_name_has_a_model_card(llm: LLM) -> None:
    client = make_client(llm, served_model_name=("one", "org/two"))

    for path, owner in (("/v1/models", "cenote"), ("/models", "infinity")):
        body = client.get(path).json()
        assert body["object"] == "list"
        assert [card["id"] for card in body["data"]] == ["one", "org/two"]
        first = body["data"][0]
        assert (first["object"], first["owned_by"], first["parent"]) == ("model", owner, None)
        assert (first["max_model_len"], first["root"]) == (256, llm.engine.model_info.root)
        assert first["state"] == "ready"
        assert isinstance(first["created"], int) and first["permission"][0]["object"] == "model_permission"
    assert client.get("/v1/models/org/two").json()["id"] == "org/two"
    assert client.get("/v1/models/three").status_code == 404
    assert (
        client.get("/v1/models/three").json()["error"]["message"]
        == "The model `three` does not exist. Available: one, org/two"
    )


def test_tokenizer_info_must_be_enabled(llm: LLM) -> None:
    assert make_client(llm).get("/tokenizer_info").status_code == 404

    body = make_client(llm, enable_tokenizer_info_endpoint=True).get("/tokenizer_info").json()

    assert body["tokenizer_class"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/nowhere", 404),
        ("POST", "/v2", 404),
        ("GET", "/v1/embeddings", 405),
        ("POST", "/version", 405),
    ],
)
def test_unknown_routes_return_the_common_error_body_with_vllms_detail(
    method: str, path: str, status: int, llm: LLM
) -> None:
    reply = make_client(llm).request(method, path)

    assert reply.status_code == status
    detail = "Not Found" if status == 404 else "Method Not Allowed"
    assert reply.json()["error"]["code"] == status and reply.json()["detail"] == detail
    assert reply.json()["message"] == f"{method} {path}: {detail}"
    assert reply.headers["x-request-id"]


def test_a_request_keeps_its_id_or_gets_one(llm: LLM) -> None:
    client = make_client(llm)

    valid = client.get("/version", headers={"X-Request-Id": "order-66/a"})
    generated = [client.get("/version").headers["x-request-id"] for _ in range(2)]
    invalid = client.get("/version", headers={"X-Request-Id": "a b<script>"})

    assert valid.headers["x-request-id"] == "order-66/a"
    assert generated[0] != generated[1] and all(len(request_id) == 32 for request_id in generated)
    assert len(invalid.headers["x-request-id"]) == 32


def test_a_proxy_may_keep_or_strip_the_root_path(llm: LLM) -> None:
    client = make_client(llm, root_path="/models/mini")

    assert client.get("/models/mini/version").status_code == 200
    assert client.get("/version").status_code == 200
    assert client.get("/models/miniversion").status_code == 404


def test_the_root_path_without_a_slash_redirects_to_the_page(llm: LLM) -> None:
    browser = {"accept": "text/html"}
    client = make_client(llm, root_path="/models/mini", api_key=("secret",))

    found = client.get("/models/mini?a=1", headers=browser, follow_redirects=False)
    page = client.get("/models/mini", headers=browser)
    posted = client.post("/models/mini", json={"inputs": "a"}, headers={"authorization": "Bearer secret"})

    assert (found.status_code, found.headers["location"]) == (307, "/models/mini/?a=1")
    assert page.url.path == "/models/mini/" and "<title>Cenote playground</title>" in page.text
    assert posted.status_code == 200 and len(posted.json()) == 1
    assert client.post("/models/mini", json={"inputs": "a"}).status_code == 401


def test_errors_in_the_middleware_are_still_answered(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    app_state = make_app_state(llm, api_key=("secret",))
    client = TestClient(build_app(app_state))

    def fail(headers: object) -> None:
        raise RuntimeError("/somewhere/private")

    monkeypatch.setattr(app_state.api_keys, "find", fail)
    reply = client.get("/version", headers={"X-Request-Id": "r1"})

    assert reply.status_code == 500
    assert "r1" in reply.json()["message"] and "private" not in reply.text


async def test_a_request_cancelled_by_shutdown_gets_an_error(llm: LLM) -> None:
    app_state = make_app_state(llm)

    class StuckEngine:
        model_info, dead_error, status = llm.engine.model_info, None, "ready"

        async def pool(self, request: PoolRequest) -> Any:
            await asyncio.sleep(60)

    app_state.set_engine(StuckEngine())  # type: ignore[arg-type]
    app = build_app(app_state)
    sent: list[dict[str, Any]] = []

    body = iter([{"type": "http.request", "body": b'{"input": "a"}'}])

    async def receive() -> Any:
        for message in body:
            return message
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/embeddings", "raw_path": b"/", "query_string": b""}
    task = asyncio.create_task(app({**scope, "headers": headers, "client": None}, receive, send))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    task.cancel()
    await task

    assert sent[0]["status"] == 503
    assert b"shut down before the request finished" in sent[1]["body"]


@pytest.mark.parametrize("disable_ui", [False, True])
def test_the_root_is_a_line_of_text_for_clients_that_are_not_browsers(llm: LLM, disable_ui: bool) -> None:
    client = make_client(llm, disable_ui=disable_ui)

    reply, page = client.get("/"), client.get("/", headers={"Accept": "text/html"})

    assert reply.status_code == page.status_code == 200
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.text == "Cenote is running: /health has its state, /v1/models its models, /docs its routes\n"
    assert ("<html" in page.text) == (not disable_ui)


def test_every_get_route_answers_head_with_the_headers_of_get(llm: LLM) -> None:
    client = make_client(llm, enable_tokenizer_info_endpoint=True)
    paths = [
        "/",
        "/health",
        "/health/live",
        "/ping",
        "/version",
        "/v1/models",
        f"/v1/models/{llm.engine.model_info.name}",
    ]
    paths += ["/metrics", "/tokenizer_info", "/docs", "/openapi.json", "/info", "/api/tags", "/api/version", "/models"]

    for path in paths:
        reply, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b"") == (reply.status_code, b""), path
        assert head.headers["content-type"] == reply.headers["content-type"]


def test_the_root_needs_a_key(llm: LLM) -> None:
    client = make_client(llm, api_key=("secret",))

    assert client.get("/").status_code == client.head("/").status_code == 401
    assert client.get("/", headers={"Authorization": "Bearer secret"}).status_code == 200


@pytest.mark.parametrize("root", ["", "/behind/a/proxy"])
@pytest.mark.parametrize("path", ["//v1/embeddings", "/v1//embeddings", "///v1///embeddings"])
def test_repeated_slashes_are_merged(path: str, root: str, llm: LLM) -> None:
    client = make_client(llm, root_path=root)

    reply = client.post(f"http://testserver/{root}{path}", json={"input": "a"}, follow_redirects=False)

    assert reply.status_code == 200, reply.text
    assert len(reply.json()["data"]) == 1


def test_repeated_slashes_work_on_all_routes(llm: LLM) -> None:
    client = make_client(llm)

    for path in ("//health", "//v1//models", "//version"):
        assert client.get(f"http://testserver{path}", follow_redirects=False).status_code == 200
    assert client.get("http://testserver//nothing").status_code == 404


def test_repeated_slashes_do_not_bypass_authentication(llm: LLM) -> None:
    client = make_client(llm, api_key=("secret",))

    assert client.post("http://testserver//v1/embeddings", json={"input": "a"}).status_code == 401
    assert client.get("http://testserver//v1/models").status_code == 401
    assert client.get("http://testserver//health").status_code == 200
    with_key = {"authorization": "Bearer secret"}
    assert client.post("http://testserver//v1/embeddings", json={"input": "a"}, headers=with_key).status_code == 200

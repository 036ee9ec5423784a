"""Admission of HTTP requests: costs of amplifying requests, deadlines, priorities and limits of API keys."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.admission.cost import estimate_pool, estimate_score
from cenote.api.admission.counters import BYTES, MODELS, QUEUED
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.request_body import count_chars, estimate_objects
from cenote.config.server import ServerConfig
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import PoolRequest, ScoreRequest
from tests.factories import LLMFactory
from tests.tiny import tiny_cross_encoder

from .app_client import assert_refused, make_client

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def reranker(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_cross_encoder)


def make_app(llm: LLM, **settings: Any) -> tuple[AppState, TestClient]:
    app_state = AppState(ServerConfig(**settings))
    app_state.set_engine(llm.engine)
    return app_state, TestClient(build_app(app_state))


def assert_nothing_in_flight(app_state: AppState) -> None:
    counters = app_state.admission.counters
    assert counters.total(BYTES) == 0 and counters.total_up_to(MODELS + QUEUED, 6) == 0


# requests whose cost is far above the size of their body


def test_a_prompt_of_megabytes_before_thousands_of_inputs_is_refused_before_it_is_copied(llm: LLM) -> None:
    app_state, client = make_app(llm)
    started_at = time.process_time()

    reply = client.post("/v1/embeddings", json={"input": ["a"] * 2048, "prompt": "word " * (6 * MEGABYTE)})

    assert_refused(reply, "with prompts and queries repeated for every input, would take about 614", None, 413)
    assert "limit 2147483648" in reply.json()["message"] and reply.headers["x-should-retry"] == "false"
    assert time.process_time() - started_at < 10
    assert_nothing_in_flight(app_state)


def test_padding_costs_the_maximum_length_of_every_input(llm: LLM, reranker: LLM) -> None:
    padded = TokenizationParams(pad_prompt_tokens=-1)
    pool = PoolRequest(task="embed", inputs=["a"] * 3, tokenization=padded)
    score = ScoreRequest(queries=["a"], documents=["b"] * 3, tokenization=padded)

    assert estimate_pool(pool, llm.engine.model_info, None).tokens == 3 * llm.engine.max_model_len
    assert estimate_score(score, llm.engine.model_info).tokens == 4 * llm.engine.max_model_len
    assert estimate_score(score, reranker.engine.model_info).tokens == 3 * reranker.engine.max_model_len


def test_an_instruction_counts_once_per_document(reranker: LLM) -> None:
    _, client = make_app(reranker, max_inflight_bytes=MEGABYTE)
    body: dict[str, Any] = {"query": "a", "documents": ["b"], "instruction": "x" * 32_768, "truncate": True}

    assert client.post("/rerank", json=body).status_code == 200
    refused = client.post("/rerank", json=body | {"documents": ["b"] * 64})

    assert refused.status_code == 413 and "would take about 21" in refused.json()["message"]  # 64 times 32,768


def test_a_query_counts_once_per_document(reranker: LLM) -> None:
    _, client = make_app(reranker, max_queue_tokens=5000)
    body = {"query": "word " * 500, "documents": ["b"] * 2048, "truncate": True}

    refused = client.post("/rerank", json=body)

    assert refused.status_code == 413 and "limit 5000; split the request" in refused.json()["message"]


def test_an_answer_larger_than_the_memory_for_answers_is_refused(llm: LLM) -> None:
    _, client = make_app(llm, max_inflight_bytes=10 * MEGABYTE)
    body = {"input": ["the water in the cave is clear " * 20] * 200, "task": "token_embed"}

    refused = client.post("/pooling", json=body)

    assert refused.status_code == 413
    assert "use encoding_format base64 or bytes for large answers" in refused.json()["message"]
    assert client.post("/pooling", json=body | {"input": body["input"][:2]}).status_code == 200


@pytest.mark.parametrize(("path", "field"), [("/pooling", "input"), ("/embed_all", "inputs")])
def test_an_answer_with_more_tokens_than_texts_usually_have_is_refused_before_it_is_encoded(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str, field: str
) -> None:
    monkeypatch.setattr("cenote.api.vector_response.encode_json", None)
    app_state, client = make_app(llm, max_inflight_bytes=20 * MEGABYTE)
    body = {field: ["," * 30] * 200, "task": "token_embed"}  # 32 tokens each, of 384 numbers

    reply = client.post(path, json=body)

    assert reply.status_code == 413 and "the answer would take about 39" in reply.text
    assert_nothing_in_flight(app_state)


def test_the_objects_of_a_body_count_before_they_are_made(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cenote.api.app.parse_body", None)
    app_state, client = make_app(llm, max_inflight_bytes=10 * MEGABYTE)
    variables = {str(number): 1.5 for number in range(100_000)}  # 1.4 MB of JSON, 13 MB of objects

    reply = client.post("/v1/embeddings", json={"messages": [], "chat_template_kwargs": variables})

    words = "the body with the objects that are made of its values would take about 17"
    assert_refused(reply, words, None, 413)
    assert_nothing_in_flight(app_state)


@pytest.mark.parametrize(
    "value",
    [
        [1.5] * 20_000,
        [""] * 20_000,
        [f"text {number}" for number in range(20_000)],
        ["\U0001f600bc"] * 20_000,
        {str(number): number + 0.5 for number in range(20_000)},
        [[]] * 20_000,
        [{}] * 20_000,
        [{"role": "user"}] * 20_000,
        [{f"a{number}": [number]} for number in range(20_000)],
    ],
)
def test_the_objects_of_a_body_take_no_more_than_estimated(value: Any) -> None:
    raw = json.dumps(value, ensure_ascii=False).encode()

    tracemalloc.start()
    parsed = msgspec.json.decode(raw)
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert parsed == value
    assert num_bytes < len(raw) + estimate_objects(count_chars(raw))


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a " * 40_000}), ("/detokenize", {"tokens": [7] * 40_000})]
)
def test_the_answers_of_tokenization_count(llm: LLM, path: str, body: Any) -> None:
    _, client = make_app(llm, max_inflight_bytes=2 * MEGABYTE)

    refused = client.post(path, json=body)

    assert refused.status_code == 413 and "with its answer" in refused.json()["message"]


def test_nothing_is_in_flight_after_requests_of_all_kinds(llm: LLM) -> None:
    app_state, client = make_app(llm)
    for path, body in [
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/embeddings", {"input": [[1, 2], [10**9]]}),
        ("/v1/embeddings", {"input": "a " * 100_000}),
        ("/score", {"queries": "a", "documents": ["b", "c"]}),
        ("/rerank", {"query": "a", "documents": ["b", "c"]}),
        ("/pooling", {"input": "a", "task": "token_embed"}),
        ("/invocations", {"input": "a", "timeout": 100}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [7]}),
        ("/v2/embed", {"texts": ["a"], "truncate": "NONE", "max_tokens": 10, "input_type": "search_query"}),
        ("/v1/embeddings", {"input": 1.5}),
    ]:
        assert client.post(path, json=body).status_code in (200, 400), path
    assert_nothing_in_flight(app_state)
    text = client.get("/metrics").text
    assert 'cenote_admitted_tokens{lane="interactive",model_name="mini"} 0.0' in text
    assert 'cenote_requests_refused_total{model_name="mini",reason="queue"} 0.0' in text


def test_the_tokens_in_flight_are_those_of_the_tokenizer_once_it_has_run(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_state, client = make_app(llm)
    pool, seen = llm.engine.pool, list[float]()

    async def tokenize_first(request: Any) -> Any:
        seen.append(app_state.admission.counters.total(MODELS + QUEUED))
        request.on_tokenized(7)
        seen.append(app_state.admission.counters.total(MODELS + QUEUED))
        return await pool(request)

    monkeypatch.setattr(llm.engine, "pool", tokenize_first)

    assert client.post("/v1/embeddings", json={"input": "a" * 60}).status_code == 200
    assert seen == [21, 7]
    assert_nothing_in_flight(app_state)


def test_a_full_queue_refuses_before_the_body_is_read(llm: LLM) -> None:
    app_state, client = make_app(llm)
    while True:
        try:
            app_state.admission.admit(1)
        except Exception:
            break

    reply = client.post("/v1/embeddings", content=b"not JSON", headers={"content-type": "application/json"})

    assert reply.status_code == 429 and "tokens in flight, limit" in reply.json()["message"]
    assert int(reply.headers["retry-after"]) >= 1 and int(reply.headers["retry-after-ms"]) >= 50
    assert "x-should-retry" not in reply.headers


# deadlines


def post_slowly(client: TestClient, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, float]:
    """Send a request to an engine that takes two seconds; return the reply and the seconds it took."""
    engine = client.app_state["engine"]  # type: ignore[index]

    async def pool(request: Any) -> Any:
        seen.append(request)
        await asyncio.sleep(2)

    seen: list[Any] = []
    monkeypatch.setattr(engine, "pool", pool)
    started_at = time.perf_counter()
    reply = client.post("/v1/embeddings", json={"input": "a"} | options.get("body", {}), headers=options.get("headers"))
    assert not seen or seen[0].deadline_at > 0
    return reply, time.perf_counter() - started_at


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"x-request-timeout-ms": "200"}},
        {"headers": {"x-request-timeout-seconds": "0.2"}},
        {"body": {"timeout": 0.2}},
        {"headers": {"x-request-timeout-ms": "100000"}, "body": {"timeout": 0.2}},
    ],
    ids=str,
)
def test_a_request_is_answered_with_504_at_its_deadline(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    app_state, client = make_app(llm)
    client.app_state["engine"] = llm.engine

    reply, seconds = post_slowly(client, monkeypatch, **options)

    assert_refused(reply, "the deadline of the request has passed", None, 504)
    assert 0.19 < seconds < 1.5
    assert_nothing_in_flight(app_state)


def test_the_server_has_a_default_timeout(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    app_state, client = make_app(llm, request_timeout_s=0.2)
    client.app_state["engine"] = llm.engine

    assert post_slowly(client, monkeypatch)[0].status_code == 504


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-request-timeout-ms", "0"), ("x-request-timeout-ms", "soon"), ("x-request-timeout-seconds", "nan")]
    + [("x-request-timeout-seconds", "-1"), ("x-priority", "urgent")],
)
def test_an_invalid_header_is_refused_by_name(llm: LLM, name: str, value: str) -> None:
    reply = make_client(llm).post("/v1/embeddings", json={"input": "a"}, headers={name: value})

    assert_refused(reply, f"invalid {name} {value!r}; expected", f"header.{name}")


# API keys


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text("plain\nfast priority weight=3\nslow max-tokens-per-minute=50\nboss admin\n")
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_only_keys_with_the_setting_may_raise_their_priority(llm: LLM, key_file: str) -> None:
    client = make_client(llm, api_key_file=key_file)

    def post(key: str, priority: int = 0, **headers: str) -> Any:
        body = {"input": "a", "priority": priority}
        return client.post("/v1/embeddings", json=body, headers={**bearer(key), **headers})

    assert_refused(post("plain", -1), "this API key may not ask to run before others", "priority", 403)
    assert_refused(post("plain", **{"x-priority": "interactive"}), "may not ask", "header.x-priority", 403)
    assert post("plain", 5).status_code == post("plain", **{"x-priority": "bulk"}).status_code == 200
    assert post("fast", -1, **{"x-priority": "interactive"}).status_code == 200


def test_the_engine_gets_tenant_weight_and_lane(llm: LLM, key_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(llm, api_key_file=key_file)
    seen: list[Any] = []
    pool = llm.engine.pool

    async def record(request: Any) -> Any:
        seen.append(request.scheduling)
        return await pool(request)

    monkeypatch.setattr(llm.engine, "pool", record)
    for inputs, headers in [("a", {}), (["b " * 200] * 70, {}), ("c", {"x-priority": "bulk"})]:
        client.post("/v1/embeddings", json={"input": inputs}, headers={**bearer("fast"), **headers})

    assert [(scheduling.weight, scheduling.lane) for scheduling in seen] == [
        (3, "interactive"),
        (3, "bulk"),
        (3, "bulk"),
    ]
    assert len({scheduling.tenant for scheduling in seen}) == 1 and len(seen[0].tenant) == 64


def test_a_key_with_a_rate_limit_sees_it_in_headers(llm: LLM, key_file: str) -> None:
    client = make_client(llm, api_key_file=key_file)
    texts = ["the water is clear"] * 5

    first = client.post("/v1/embeddings", json={"input": texts}, headers=bearer("slow"))
    second = client.post("/v1/embeddings", json={"input": texts}, headers=bearer("slow"))

    assert first.status_code == 200 and first.headers["x-ratelimit-limit-tokens"] == "50"
    assert 0 < int(first.headers["x-ratelimit-remaining-tokens"]) < 30
    assert first.headers["x-ratelimit-reset-tokens"].endswith("s")
    assert second.status_code == 429 and "tokens per minute" in second.json()["message"]
    assert client.post("/v1/embeddings", json={"input": texts}, headers=bearer("plain")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
def test_adapters_always_need_an_admin_key(llm: LLM, path: str) -> None:
    body = {"lora_name": "x", "lora_path": "/nowhere"}
    settings = {"allow_runtime_lora_updating": True, "api_key": ("user",)}
    protected = make_client(llm, admin_api_key=("root",), **settings)
    shared = make_client(llm, **settings)
    without_keys = make_client(llm, allow_runtime_lora_updating=True)

    assert_refused(protected.post(path, json=body, headers=bearer("user")), "needs an admin key", None, 403)
    assert protected.post(path, json=body, headers=bearer("root")).status_code in (400, 404)  # there is no such adapter
    assert protected.post("/v1/embeddings", json={"input": "a"}, headers=bearer("root")).status_code == 200
    for refused in (shared.post(path, json=body, headers=bearer("user")), without_keys.post(path, json=body)):
        words = f"{path} needs an admin key, and this server has none: --admin-api-key, or `admin` in --api-key-file"
        assert_refused(refused, words, None, 403)
    assert make_client(llm, admin_api_key=("root",)).get("/version").status_code == 401

"""Several models in one server: which one a request selects, and what each of them says about itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.served_models import EngineUse, ServedModel
from cenote.config.server import ServerConfig
from tests.factories import LLMFactory
from tests.tiny import tiny_bert, tiny_bert_classifier, tiny_splade

from .app_client import assert_refused, load_llm

PROMPTS = {"query": "find: ", "document": "the book: "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def embedder(folder: Path, open_llm: LLMFactory) -> LLM:
    (folder / "embedder").mkdir()
    tiny_bert(folder / "embedder")
    (folder / "embedder" / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return open_llm(folder / "embedder")


@pytest.fixture(scope="module")
def reranker(folder: Path, open_llm: LLMFactory) -> LLM:
    (folder / "reranker").mkdir()
    tiny_bert_classifier(folder / "reranker", num_labels=1)
    return open_llm(folder / "reranker")


def make_model(app_state: AppState, slot: int, llm: LLM | None, source: Path, *names: str) -> ServedModel:
    model = ServedModel(names[0], names[1:], str(source))
    if llm is not None:
        model.set_use(EngineUse(llm.engine, app_state.make_admission(slot)))
    return model


@pytest.fixture
def app_state(embedder: LLM, reranker: LLM, folder: Path) -> AppState:
    app_state = AppState(ServerConfig())
    models: Sequence[ServedModel] = [
        make_model(app_state, 0, embedder, folder / "embedder", "emb", "text-embedding-3-small"),
        make_model(app_state, 1, reranker, folder / "reranker", "org/rank"),
    ]
    app_state.models.set(models)
    return app_state


@pytest.fixture
def client(app_state: AppState) -> TestClient:
    return TestClient(build_app(app_state))


def embed(client: TestClient, model: str | None, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return client.post("/v1/embeddings", json={"input": "the city", "model": model, **body}, headers=headers)


def test_a_request_reaches_the_model_that_it_names(client: TestClient, embedder: LLM, folder: Path) -> None:
    (expected,) = embedder.embed(["the city"], use_tqdm=False)
    for name in ("emb", "text-embedding-3-small", "embedder", str(folder / "embedder"), "emb:latest", None):
        reply = embed(client, name)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == "emb"
        assert reply.json()["data"][0]["embedding"] == pytest.approx(expected.outputs.embedding, abs=1e-5)

    pair = {"query": "the city", "documents": ["a dog", "the old city"]}
    assert client.post("/rerank", json={**pair, "model": "org/rank"}).json()["model"] == "org/rank"
    assert client.post("/rerank", json=pair, headers={"x-model": "org/rank"}).json()["model"] == "org/rank"
    assert client.post("/invocations", json={**pair, "model": "org/rank"}).json()["model"] == "org/rank"


def test_the_body_takes_precedence_over_the_header(client: TestClient) -> None:
    assert embed(client, "emb", {"x-model": "org/rank"}).json()["model"] == "emb"


def test_a_name_may_carry_the_role_whose_prompt_is_used(client: TestClient, embedder: LLM) -> None:
    texts = {"query": "find: the city", "document": "the book: the city"}
    for role, text in texts.items():
        (expected,) = embedder.embed([text], use_tqdm=False)
        for name in (f"emb:{role}", f"embedder:{role}"):
            vector = embed(client, name).json()["data"][0]["embedding"]
            assert vector == pytest.approx(expected.outputs.embedding, abs=1e-5)
        cohere = client.post("/v2/embed", json={"texts": ["the city"], "model": f"emb:{role}"}).json()
        assert cohere["embeddings"]["float"][0] == pytest.approx(expected.outputs.embedding, abs=1e-5)


def test_a_prompt_of_the_request_takes_precedence_over_the_role_of_the_name(client: TestClient, embedder: LLM) -> None:
    (expected,) = embedder.embed(["the book: the city"], use_tqdm=False)

    for own in ({"prompt_name": "document"}, {"input_type": "document"}, {"prompt": "the book: "}):
        vector = embed(client, "emb:query", **own).json()["data"][0]["embedding"]
        assert vector == pytest.approx(expected.outputs.embedding, abs=1e-5)


@pytest.mark.parametrize("name", ["nobody", "emb:nobody", "nobody:query", "", "rank:x", ":latest"])
def test_an_unknown_name_is_refused_with_the_names_there_are(name: str, client: TestClient) -> None:
    words = f"The model `{name}` does not exist. Available: emb, text-embedding-3-small, org/rank"
    assert_refused(embed(client, name), words, None, 404)


def test_a_route_that_the_model_does_not_support_names_models_that_do(client: TestClient) -> None:
    reply = embed(client, "org/rank")

    assert reply.status_code == 400
    assert "does not support Embeddings API" in reply.json()["message"]
    assert reply.json()["message"].endswith("models of this server that do: emb")


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/embeddings", {"input": "a"}, "emb"),
        ("/v2/embed", {"texts": ["a"], "input_type": "search_query"}, "emb"),
        ("/rerank", {"query": "a", "documents": ["b"]}, "org/rank"),
        ("/classify", {"input": "a"}, "org/rank"),
        ("/pooling", {"input": "a", "task": "classify"}, "org/rank"),
        ("/pooling", {"input": "a", "task": "token_embed"}, "emb"),
        ("/predict", {"inputs": "a"}, "org/rank"),
    ],
)
def test_a_request_without_a_model_reaches_the_one_that_can_answer_it(
    path: str, body: dict[str, Any], model: str, client: TestClient
) -> None:
    reply = client.post(path, json=body)

    assert reply.status_code == 200, reply.text
    assert reply.headers["x-model"] == model
    assert "x-model" not in client.post(path, json=body, headers={"x-model": model}).headers


def test_scores_without_a_model_are_those_of_the_reranker_not_of_an_embedder_of_any_kind(
    app_state: AppState, client: TestClient, folder: Path
) -> None:
    (folder / "splade").mkdir()
    tiny_splade(folder / "splade")
    with load_llm(folder / "splade") as llm:
        app_state.models.set([*app_state.models, make_model(app_state, 2, llm, folder / "splade", "sparse")])

        reply = client.post("/rerank", json={"query": "a", "documents": ["b"]})

    assert reply.status_code == 200, reply.text
    assert reply.headers["x-model"] == "org/rank"


def test_a_request_without_a_model_is_refused_if_several_can_answer_it(client: TestClient) -> None:
    words = (
        "The request names no model, and several models of this server can answer it. Set `model`, or the header "
        "x-model, to one of: emb (embed, token_embed), org/rank (classify, token_classify)"
    )

    for path, body in (("/tokenize", {"prompt": "a"}), ("/pooling", {"input": "a"})):
        assert_refused(client.post(path, json=body), words, "model")


def test_a_request_without_a_model_that_none_can_answer_names_what_each_does(client: TestClient) -> None:
    reply = client.post("/entities", json={"input": "a"})

    words = "and no model of this server can answer it, whichever it names: emb"
    assert_refused(reply, words, "model")
    assert "emb (embed, token_embed), org/rank (classify, token_classify)" in reply.json()["message"]


def test_a_request_without_a_model_waits_until_all_models_of_the_start_are_known(
    app_state: AppState, client: TestClient, folder: Path
) -> None:
    app_state.models.set([*app_state.models, make_model(app_state, 2, None, folder / "embedder", "later")])

    assert embed(client, None).status_code == 503
    assert embed(client, "emb").status_code == 200


def test_every_name_is_listed_with_state_and_tasks(
    app_state: AppState, client: TestClient, embedder: LLM, folder: Path
) -> None:
    app_state.models.set([*app_state.models, make_model(app_state, 2, None, folder / "embedder", "later")])

    cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}

    assert list(cards) == ["emb", "text-embedding-3-small", "org/rank", "later"]
    assert cards["emb"]["state"] == cards["org/rank"]["state"] == "ready" and cards["later"]["state"] == "loading"
    assert cards["emb"]["tasks"] == list(embedder.engine.model_info.tasks) and cards["later"]["tasks"] == []
    assert cards["later"]["max_model_len"] is None
    assert client.get("/v1/models/org/rank").json()["id"] == "org/rank"
    assert client.get("/v1/models/reranker").json()["id"] == "org/rank"


def test_a_model_that_does_not_answer_is_named_and_the_others_serve(
    app_state: AppState, client: TestClient, folder: Path
) -> None:
    failed = make_model(app_state, 2, None, folder / "embedder", "broken")
    failed.report("failed", "model.safetensors is missing", None)
    app_state.models.set([*app_state.models, failed])

    reply = client.get("/health/ready")
    assert (reply.status_code, reply.json()["state"]) == (503, "failed")
    assert reply.json()["message"] == "1 of 3 models do not answer: broken (failed)"
    assert client.get("/health/live").status_code == 200
    assert embed(client, "emb").status_code == 200
    assert_refused(embed(client, "broken"), "the model broken has failed; the reason is in the server log", None, 503)


def test_a_name_that_two_folders_share_selects_neither(app_state: AppState, embedder: LLM, tmp_path: Path) -> None:
    models = []
    for slot, owner in enumerate(("one", "two")):
        (tmp_path / owner / "model").mkdir(parents=True)
        models.append(make_model(app_state, slot, embedder, tmp_path / owner / "model", owner))
    app_state.models.set(models)
    client = TestClient(build_app(app_state))

    assert embed(client, "model").status_code == 404
    assert embed(client, str(tmp_path / "two" / "model")).json()["model"] == "two"


def test_each_model_has_its_own_queue(app_state: AppState, client: TestClient) -> None:
    emb = app_state.models.by_name["emb"].use
    assert emb is not None
    ticket = emb.admission.admit(16384)
    try:
        for _ in range(20):
            emb.admission.admit(1000, "bulk")
        assert client.post("/rerank", json={"query": "a", "documents": ["b"], "model": "org/rank"}).status_code == 200
        rank = app_state.models.by_name["org/rank"].use
        assert rank is not None and rank.admission.counters.total(rank.admission.queued) == 0
    finally:
        ticket.release(is_completed=False)


class LoadsLater:
    """Loads a model a moment after it is asked to, and reports that it is loading in between."""

    def __init__(self, app_state: AppState, llm: LLM) -> None:
        self.app_state = app_state
        self.llm = llm
        self.num_calls = 0

    async def __call__(self, call: Any) -> None:
        self.num_calls += 1
        model = self.app_state.models.by_name[call.name]
        model.report("loading", "", None)
        await asyncio.sleep(0.2)
        model.report("ready", "", None)
        model.set_use(EngineUse(self.llm.engine, self.app_state.make_admission(0)))


@pytest.mark.parametrize("num_models", [1, 2])
async def test_requests_for_a_model_that_is_not_loaded_wait_for_one_load(
    num_models: int, embedder: LLM, reranker: LLM, folder: Path
) -> None:
    app_state = AppState(ServerConfig())
    later = make_model(app_state, 0, None, folder / "embedder", "later")
    later.is_first_load = False
    later.report("unloaded", "", None)
    rank = make_model(app_state, 1, reranker, folder / "reranker", "rank")
    app_state.models.set([later, rank][:num_models])
    loads = LoadsLater(app_state, embedder)
    app_state.admin = loads  # type: ignore[assignment]

    transport = httpx.ASGITransport(build_app(app_state))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:

        async def post(delay_s: float) -> int:
            await asyncio.sleep(delay_s)
            return (await client.post("/v1/embeddings", json={"input": "the city", "model": "later"})).status_code

        result = list(await asyncio.gather(*map(post, (0.0, 0.0, 0.1))))  # the last one while it is loading

    assert result == [200, 200, 200]
    assert loads.num_calls == 1 and later.use is not None and later.use.num_users == 0

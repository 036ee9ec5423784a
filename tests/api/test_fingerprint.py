"""The fingerprint of the model in `/v1/models`, in response headers and in the banner."""

from __future__ import annotations

from cenote import LLM
from cenote.api.app_state import AppState
from cenote.api.banner import make_banner_rows
from cenote.config.server import ServerConfig
from tests.api.app_client import make_client


def test_the_list_of_models_has_it(llm: LLM) -> None:
    card = make_client(llm).get("/v1/models").json()["data"][0]

    assert card["fingerprint"] == str(llm.engine.model.fingerprint)


def test_every_reply_of_the_model_has_it(llm: LLM) -> None:
    client, fingerprint = make_client(llm), str(llm.engine.model.fingerprint)
    replies = [
        client.post("/v1/embeddings", json={"input": "hello"}),
        client.post("/rerank", json={"query": "a", "documents": ["b", "c"]}),
        client.post("/tokenize", json={"prompt": "hello"}),
        client.post("/v1/embeddings", json={"input": "hello", "dimensions": 7}),  # refused by the model
    ]

    assert [reply.status_code for reply in replies] == [200, 200, 200, 400]
    assert {reply.headers["x-model-fingerprint"] for reply in replies} == {fingerprint}


def test_replies_of_the_server_itself_do_not(llm: LLM) -> None:
    assert "x-model-fingerprint" not in make_client(llm).get("/health").headers


def test_browsers_may_read_it(llm: LLM) -> None:
    client = make_client(llm, allowed_origins=("https://example.org",))
    reply = client.post("/v1/embeddings", json={"input": "hello"}, headers={"Origin": "https://example.org"})

    assert "x-model-fingerprint" in reply.headers["access-control-expose-headers"]


def test_the_banner_has_it_and_the_pooling(llm: LLM) -> None:
    rows = make_banner_rows(AppState(ServerConfig()), "http://localhost", llm.engine.model_info)

    assert rows["pooling"] == "MEAN"
    assert rows["fingerprint"] == str(llm.engine.model.fingerprint)

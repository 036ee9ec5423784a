"""Routes of Weaviate's inference containers, with the bodies that its modules send, without Content-Type."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import make_client

CONFIG = {"pooling_strategy": "masked_mean", "task_type": "passage"}


def post(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, content=json.dumps(body).encode()).json()


def test_one_text_and_several_give_the_same_vectors(client: TestClient, llm: LLM) -> None:
    single = post(client, "/vectors", {"text": "a cave", "dims": 0, "vector": None, "error": "", "config": CONFIG})
    batch = post(client, "/vectors", {"texts": ["a cave", "a bird"], "config": CONFIG})

    assert (single["text"], single["dims"], batch["dims"]) == ("a cave", 384, 384)
    assert np.allclose(single["vector"], batch["vectors"][0], atol=1e-4)
    assert np.allclose(single["vector"], llm.embed("a cave", use_tqdm=False)[0].outputs.embedding, atol=1e-3)


def test_scores_keep_the_order_of_the_documents(client: TestClient) -> None:
    body = {"query": "a bird", "documents": ["the price of bread", "a red bird"], "property": ""}
    reply = post(client, "/rerank", body)

    assert reply["query"] == "a bird" and [item["document"] for item in reply["scores"]] == body["documents"]
    assert reply["scores"][0]["score"] < reply["scores"][1]["score"]
    assert "results" in post(client, "/rerank", {"query": "a", "documents": ["b"]})
    assert isinstance(post(client, "/rerank", {"query": "a", "texts": ["b"]}), list)


def test_the_container_is_ready_and_describes_the_model(client: TestClient, llm: LLM) -> None:
    assert client.get("/.well-known/ready").status_code == client.get("/.well-known/live").status_code == 200
    assert client.get("/meta").json()["max_input_length"] == 256
    assert make_client(llm, api_key=("secret",)).get("/.well-known/ready").status_code == 200


def test_errors_are_strings(client: TestClient) -> None:
    for body in ({}, {"text": 1}):
        assert isinstance(post(client, "/vectors", body)["error"], str)


def test_an_absurd_number_of_dimensions_is_refused(client: TestClient) -> None:
    reply = client.post("/vectors", json={"text": "a", "config": {"dimensions": 10**30}})

    assert reply.status_code == 400 and "config.dimensions" in reply.json()["error"]

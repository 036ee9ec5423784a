"""Prompts, roles and tasks on every route that embeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.front_ends.codec_requests import decode_pool, decode_score, encode_pool, encode_score, to_json
from cenote.api.front_ends.codec_results import decode_model_info
from cenote.api.front_ends.messages import EngineReady, PoolCall, ScoreCall
from cenote.protocol.requests import PoolRequest, ScoreRequest, Timing
from tests.api.app_client import add_chat_template, assert_refused, load_llm, make_client
from tests.api.front_ends.test_messages import roundtrip
from tests.api.front_ends.test_remote_engine import call_both
from tests.models.test_rotary_encoders import save_adapted
from tests.tiny import TEXTS, change_config, tiny_bert, tiny_splade

PROMPTS = {"query": "search query: ", "document": "passage: ", "song": "song of "}
INSTRUCTIONS = {"retrieval.query": "search query: ", "retrieval.passage": "passage: ", "separation": ""}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """An embedder that takes texts for documents where nothing is said."""
    folder = tmp_path_factory.mktemp("prompted")
    tiny_bert(folder)
    add_chat_template(folder)
    settings = {"prompts": PROMPTS, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with load_llm(folder) as llm:
        yield llm


@pytest.fixture(scope="module")
def client(llm: LLM) -> TestClient:
    return make_client(llm)


@pytest.fixture(scope="module")
def jina(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("jina")
    save_adapted(folder)
    change_config(folder, task_instructions=INSTRUCTIONS)
    with load_llm(folder) as llm:
        yield llm


def vectors(client: TestClient, path: str, **body: Any) -> np.ndarray[Any, Any]:
    """The vectors for all texts, from any of the routes; those of tokens laid end to end."""
    given = {"texts": TEXTS, "embedding_types": ["float"]} if path.endswith("embed") else {"input": TEXTS}
    reply = client.post(path, json=given | body)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    if "embeddings" in answer:
        return np.array(answer["embeddings"]["float"])
    return np.concatenate([np.array(item.get("embedding", item.get("data"))).ravel() for item in answer["data"]])


def expected(llm: LLM, prompt: str, task: str = "embed", **how: Any) -> np.ndarray[Any, Any]:
    texts = [prompt + text for text in TEXTS]
    outputs = llm.encode(texts, pooling_task=task, prompt="", use_tqdm=False, **how)
    return np.concatenate([output.outputs.data.numpy().ravel() for output in outputs])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {}),
        ("/v1/embed", {}),
        ("/v2/embed", {}),
        ("/pooling", {"task": "embed"}),
        ("/pooling", {"task": "token_embed"}),
        ("/invocations", {"task": "embed"}),
    ],
)
def test_a_prompt_is_chosen_in_every_way_on_every_route(
    client: TestClient, llm: LLM, path: str, body: dict[str, Any]
) -> None:
    ways: list[tuple[dict[str, Any], str]] = [
        ({}, "passage: "),
        ({"prompt": ""}, ""),
        ({"prompt": "red "}, "red "),
        ({"prompt_name": "song"}, "song of "),
        ({"input_type": "query"}, "search query: "),
        ({"input_type": "search_query"}, "search query: "),
        ({"input_type": "song"}, "song of "),
        ({"input_type": "clustering"}, "passage: "),
        ({"prompt": "red ", "prompt_name": "song", "input_type": "query"}, "red "),
    ]
    for given, prompt in ways:
        found = vectors(client, path, **body, **given)
        np.testing.assert_allclose(found.ravel(), expected(llm, prompt, body.get("task", "embed")), atol=1e-5)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_a_role_is_another_name_and_must_not_contradict(client: TestClient, llm: LLM, path: str) -> None:
    for role in ("query", "search_query"):
        np.testing.assert_allclose(vectors(client, path, role=role), expected(llm, "search query: "), atol=1e-5)

    reply = client.post(path, json={"input": "a", "role": "query", "input_type": "passage"})
    assert_refused(reply, "got role='query' and input_type='passage'; give one", "input_type")
    assert client.post(path, json={"input": "a", "role": "song"}).status_code == 400


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/embed", "/v2/embed", "/pooling"])
def test_a_name_that_is_not_there_is_refused_with_those_that_are(client: TestClient, path: str) -> None:
    body = {"texts": ["a"]} if path.endswith("embed") else {"input": "a"}

    reply = client.post(path, json=body | {"input_type": "rhyme"})
    assert_refused(reply, "Unsupported input_type 'rhyme'. Supported values: document, query, song", "input_type")
    reply = client.post(path, json=body | {"prompt_name": "rhyme"})
    assert_refused(reply, "no prompt is called 'rhyme'; this model has: document, query, song", "prompt_name")
    reply = client.post(path, json=body | {"adapter": "rhyme"})
    assert_refused(reply, "Got lora_request rhyme but LoRA is not enabled!", "adapter")
    if path != "/pooling":  # where task is what is done
        reply = client.post(path, json=body | {"task": "rhyme"})
        assert_refused(reply, "no task is called 'rhyme'; this model has: document, query, song", "task")


def test_conversations_and_token_ids_are_read_as_they_are(client: TestClient) -> None:
    for given in ({"input": [7, 8, 9]}, {"messages": [{"role": "user", "content": "the cat"}]}):
        plain = client.post("/v1/embeddings", json=given | {"prompt": ""}).json()
        for more in ({}, {"input_type": "query"}):
            assert client.post("/v1/embeddings", json=given | more).json()["data"] == plain["data"]


def test_comparing_puts_no_prompt_before_texts(client: TestClient) -> None:
    body = {"queries": "the cat", "documents": ["a red bird"]}
    for score_type in ("bi-encoder", "late-interaction"):
        reply = client.post("/score", json=body | {"score_type": score_type}).json()
        assert reply["usage"]["prompt_tokens"] == 4 + 1 + 5  # [CLS] the cat [SEP], padding, [CLS] a red bird [SEP]


def test_a_text_is_counted_with_the_prompt_that_it_gets(client: TestClient) -> None:
    body: dict[str, Any] = {"texts": ["the cat"], "truncate": "NONE"}
    for more, count in (({}, 6), ({"input_type": "query"}, 7), ({"prompt": ""}, 4)):
        assert client.post("/v2/embed", json=body | more | {"max_tokens": count}).status_code == 200
        reply = client.post("/v2/embed", json=body | more | {"max_tokens": count - 1})
        assert_refused(reply, f"Input of {count} tokens exceeds max_tokens={count - 1}", "max_tokens")


def test_a_sparse_vector_has_a_prompt_too(tmp_path: Path) -> None:
    tiny_splade(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))

    with load_llm(tmp_path) as llm:
        client = make_client(llm)
        ask_for = {"input": "the cat", "input_type": "query"}
        found = client.post("/v1/sparse_embeddings", json=ask_for).json()["data"]
        pooled = client.post("/pooling", json=ask_for | {"task": "sparse_embed"}).json()["data"]
        written = client.post("/v1/sparse_embeddings", json={"input": "search query: the cat"}).json()["data"]

    assert found == written
    assert pooled[0]["data"]["token_ids"] == found[0]["token_ids"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/embed", "/v1/embed", "/invocations"])
def test_a_task_chooses_the_adapter_and_its_instruction(jina: LLM, path: str) -> None:
    client = make_client(jina)
    for task, prompt in INSTRUCTIONS.items():
        ours = expected(jina, prompt, lora_request=task)
        np.testing.assert_allclose(vectors(client, path, task=task).ravel(), ours, atol=1e-5)
    query = expected(jina, "search query: ", lora_request="retrieval.query")
    np.testing.assert_allclose(vectors(client, path, input_type="query").ravel(), query, atol=1e-5)

    body = {"texts": ["a"]} if path.endswith("embed") else {"input": "a"}
    known = "classification, retrieval.passage, retrieval.query, separation, text-matching"
    if path != "/invocations":  # where a task that is unknown belongs to the route for all tasks
        reply = client.post(path, json=body | {"task": "code"})
        assert_refused(reply, f"no task is called 'code'; this model has: {known}", "task")


def test_where_a_task_is_something_else_the_adapter_has_its_name(jina: LLM) -> None:
    found = vectors(make_client(jina), "/pooling", task="token_embed", adapter="separation")

    np.testing.assert_allclose(found, expected(jina, "", "token_embed", lora_request="separation"), atol=1e-5)


def test_prompt_fields_reach_a_remote_engine(jina: LLM) -> None:
    for words in ({"purpose": "retrieval.query"}, {"input_type": "document"}, {"adapter": ["separation", None]}):
        request = PoolRequest(task="embed", inputs=TEXTS[:2], **words)
        assert decode_pool(roundtrip(encode_pool(1, request), PoolCall), Timing()) == request
        near, far = call_both(jina.engine, methodcaller("pool", request))
        for one, other in zip(near, far, strict=True):
            # the last bits of a row depend on the rows beside it, and which those are on time
            np.testing.assert_allclose(one.data.numpy(), other.data, atol=1e-5)
    score = ScoreRequest(queries=["a"], documents=["b"], adapter="separation")
    assert decode_score(roundtrip(encode_score(1, score), ScoreCall), Timing()) == score
    assert decode_model_info(EngineReady(to_json(jina.engine.model_info))) == jina.engine.model_info


def test_the_fields_are_explained_in_the_document(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]

    for body, names in {
        "EmbeddingsBody": ("prompt", "prompt_name", "input_type", "role", "task", "adapter"),
        "EmbedBody": ("prompt", "prompt_name", "input_type", "task", "adapter"),
        "PoolingBody": ("prompt", "prompt_name", "input_type", "role", "adapter"),
        "ScoreBody": ("adapter",),
    }.items():
        for name in names:
            assert schemas[body]["properties"][name]["description"], name

"""Prompts, input types and embedding tasks on all embedding routes."""

from __future__ import annotations

import json
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.protocol.requests import PoolRequest, ScoreRequest
from tests.api.app_client import add_chat_template, assert_refused, load_llm, make_client, post_json
from tests.api.front_ends.remote_link import call_both
from tests.factories import LLMFactory
from tests.models.rotary_encoders import save_adapted
from tests.tiny import TEXTS, change_config, tiny_bert, tiny_splade

PROMPTS = {"query": "search query: ", "document": "passage: ", "song": "song of "}
INSTRUCTIONS = {"retrieval.query": "search query: ", "retrieval.passage": "passage: ", "separation": ""}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    """An embedding model whose default prompt is that of documents."""
    folder = tmp_path_factory.mktemp("prompted")
    tiny_bert(folder)
    add_chat_template(folder)
    settings = {"prompts": PROMPTS, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return open_llm(folder)


@pytest.fixture(scope="module")
def jina(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("jina")
    save_adapted(folder)
    change_config(folder, task_instructions=INSTRUCTIONS)
    return open_llm(folder)


def post_vectors(client: TestClient, path: str, **body: Any) -> np.ndarray[Any, Any]:
    """Return the embeddings of all texts from any route; token embeddings are concatenated."""
    inputs = {"texts": TEXTS, "embedding_types": ["float"]} if path.endswith("embed") else {"input": TEXTS}
    content = post_json(client, path, **inputs | body)
    if "embeddings" in content:
        return np.array(content["embeddings"]["float"])
    return np.concatenate([np.array(item.get("embedding", item.get("data"))).ravel() for item in content["data"]])


def expected(llm: LLM, prompt: str, task: str = "embed", **options: Any) -> np.ndarray[Any, Any]:
    texts = [prompt + text for text in TEXTS]
    outputs = llm.encode(texts, pooling_task=task, prompt="", use_tqdm=False, **options)
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
def test_prompts_can_be_selected_on_every_route(client: TestClient, llm: LLM, path: str, body: dict[str, Any]) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
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
    for fields, prompt in cases:
        found = post_vectors(client, path, **body, **fields)
        np.testing.assert_allclose(found.ravel(), expected(llm, prompt, body.get("task", "embed")), atol=1e-5)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_role_is_an_alias_of_input_type_and_conflicts_are_refused(client: TestClient, llm: LLM, path: str) -> None:
    for role in ("query", "search_query"):
        np.testing.assert_allclose(post_vectors(client, path, role=role), expected(llm, "search query: "), atol=1e-5)

    reply = client.post(path, json={"input": "a", "role": "query", "input_type": "passage"})
    assert_refused(reply, "conflicting role='query' and input_type='passage'", "input_type")
    assert client.post(path, json={"input": "a", "role": "song"}).status_code == 400


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/embed", "/v2/embed", "/pooling"])
def test_unknown_names_are_refused_with_the_available_ones(client: TestClient, path: str) -> None:
    body = {"texts": ["a"]} if path.endswith("embed") else {"input": "a"}

    reply = client.post(path, json=body | {"input_type": "rhyme"})
    assert_refused(reply, "Unsupported input_type 'rhyme'. Supported values: document, query, song", "input_type")
    reply = client.post(path, json=body | {"prompt_name": "rhyme"})
    assert_refused(reply, "unknown prompt_name 'rhyme'; available: document, query, song", "prompt_name")
    reply = client.post(path, json=body | {"adapter": "rhyme"})
    assert_refused(reply, "Got lora_request rhyme but LoRA is not enabled!", "adapter")
    if path != "/pooling":  # where task is the pooling task
        reply = client.post(path, json=body | {"task": "rhyme"})
        assert_refused(reply, "unknown task 'rhyme'; available: document, query, song", "task")


def test_conversations_and_token_ids_get_no_prompt(client: TestClient) -> None:
    for body in ({"input": [7, 8, 9]}, {"messages": [{"role": "user", "content": "the cat"}]}):
        plain = client.post("/v1/embeddings", json=body | {"prompt": ""}).json()
        for fields in ({}, {"input_type": "query"}):
            assert client.post("/v1/embeddings", json=body | fields).json()["data"] == plain["data"]


def test_scoring_adds_no_prompts(client: TestClient) -> None:
    body = {"queries": "the cat", "documents": ["a red bird"]}
    for score_type in ("bi-encoder", "late-interaction"):
        reply = client.post("/score", json=body | {"score_type": score_type}).json()
        assert reply["usage"]["prompt_tokens"] == 4 + 5  # [CLS] the cat [SEP], [CLS] a red bird [SEP]


def test_token_counts_include_the_prompt(client: TestClient) -> None:
    body: dict[str, Any] = {"texts": ["the cat"], "truncate": "NONE"}
    for fields, count in (({}, 6), ({"input_type": "query"}, 7), ({"prompt": ""}, 4)):
        assert client.post("/v2/embed", json=body | fields | {"max_tokens": count}).status_code == 200
        reply = client.post("/v2/embed", json=body | fields | {"max_tokens": count - 1})
        assert_refused(reply, f"Input of {count} tokens exceeds max_tokens={count - 1}", "max_tokens")


def test_sparse_embeddings_use_prompts(tmp_path: Path) -> None:
    tiny_splade(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))

    with load_llm(tmp_path) as llm:
        client = make_client(llm)
        body = {"input": "the cat", "input_type": "query"}
        found = client.post("/v1/sparse_embeddings", json=body).json()["data"]
        pooled = client.post("/pooling", json=body | {"task": "sparse_embed"}).json()["data"]
        with_text = client.post("/v1/sparse_embeddings", json={"input": "search query: the cat"}).json()["data"]

    assert found == with_text
    assert pooled[0]["data"]["token_ids"] == found[0]["token_ids"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/embed", "/v1/embed", "/invocations"])
def test_an_embedding_task_selects_the_adapter_and_its_instruction(jina: LLM, path: str) -> None:
    client = make_client(jina)
    for task, prompt in INSTRUCTIONS.items():
        ours = expected(jina, prompt, lora_request=task)
        np.testing.assert_allclose(post_vectors(client, path, task=task).ravel(), ours, atol=1e-5)
    query = expected(jina, "search query: ", lora_request="retrieval.query")
    np.testing.assert_allclose(post_vectors(client, path, input_type="query").ravel(), query, atol=1e-5)

    body = {"texts": ["a"]} if path.endswith("embed") else {"input": "a"}
    known = "classification, retrieval.passage, retrieval.query, separation, text-matching"
    if path != "/invocations":  # an unknown task selects the pooling route there
        reply = client.post(path, json=body | {"task": "code"})
        assert_refused(reply, f"unknown task 'code'; available: {known}", "task")


def test_the_pooling_route_selects_an_embedding_task_by_adapter(jina: LLM) -> None:
    found = post_vectors(make_client(jina), "/pooling", task="token_embed", adapter="separation")

    np.testing.assert_allclose(found, expected(jina, "", "token_embed", lora_request="separation"), atol=1e-5)


def test_prompt_fields_reach_a_remote_engine(jina: LLM) -> None:
    for fields in (
        {"embedding_task": "retrieval.query"},
        {"input_type": "document"},
        {"adapter": "separation"},
    ):
        request = PoolRequest(task="embed", inputs=TEXTS[:2], **fields)
        local, remote = call_both(jina.engine, methodcaller("pool", request))
        for one, other in zip(local, remote, strict=True):
            # the last bits depend on the other rows of the batch, and batching on timing
            np.testing.assert_allclose(one.data, other.data, atol=1e-5)
    score = ScoreRequest(queries=["a"], documents=["b"], adapter="separation")
    local, remote = call_both(jina.engine, methodcaller("score", score))
    assert remote[0].score == pytest.approx(local[0].score, abs=1e-5)


def test_prompt_fields_have_descriptions(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]

    for body, names in {
        "EmbeddingsBody": ("prompt", "prompt_name", "input_type", "role", "task", "adapter"),
        "EmbedBody": ("prompt", "prompt_name", "input_type", "task", "adapter"),
        "PoolingBody": ("prompt", "prompt_name", "input_type", "role", "adapter"),
        "ScoreBody": ("adapter",),
    }.items():
        for name in names:
            assert schemas[body]["properties"][name]["description"], name

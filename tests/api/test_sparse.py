"""Sparse embeddings over HTTP: their own route, the pooling route, several tasks, and the plugin body of vLLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.sparse_response import TaskAnswers
from cenote.protocol.params import TASKS
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.api.api_document import assert_documented, get_document
from tests.api.app_client import assert_refused, decode_base64, load_llm, make_client
from tests.api.front_ends.remote_link import call_both
from tests.factories import LLMFactory
from tests.tiny import tiny_bert, tiny_bge_m3, tiny_splade

TEXTS = ["the cat and the dog and the bird", "a ☃ in the city", "", "how big is the old river?"]


@pytest.fixture(scope="module")
def bge_m3(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_bge_m3)


@pytest.fixture(scope="module")
def splade(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_splade)


def post_json(client: TestClient, path: str, **body: Any) -> list[Any]:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    assert_documented(reply, path, "post", get_document(client))
    return reply.json()["data"]  # type: ignore[no-any-return]


def expected(llm: LLM, *, tokens: bool = False) -> list[dict[str, Any]]:
    """Return the results of LLM.sparse_embed as JSON objects."""
    vectors = [output.outputs for output in llm.sparse_embed(TEXTS, use_tqdm=False)]
    return [
        {"token_ids": vector.token_ids, "weights": vector.weights} | ({"tokens": vector.tokens} if tokens else {})
        for vector in vectors
    ]


def assert_same(ours: Any, theirs: Any) -> None:
    """Check that fields, ids and tokens are equal, and weights within 1e-5."""
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        if key == "weights":
            assert value == pytest.approx(theirs[key], abs=1e-5)
        else:
            assert value == theirs[key]


# /v1/sparse_embeddings


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", ["bge_m3", "splade"])
def test_every_input_has_token_ids_and_weights(name: str, tokens: bool, request: pytest.FixtureRequest) -> None:
    llm = request.getfixturevalue(name)

    items = post_json(make_client(llm), "/v1/sparse_embeddings", input=TEXTS, return_tokens=tokens)

    for index, (item, vector) in enumerate(zip(items, expected(llm, tokens=tokens), strict=True)):
        assert (item.pop("index"), item.pop("object")) == (index, "sparse_embedding")
        assert_same(item, vector)


def test_a_response_has_usage_and_token_counts(bge_m3: LLM) -> None:
    reply = make_client(bge_m3).post("/v1/sparse_embeddings", json={"input": "two", "return_token_counts": True})

    body = reply.json()
    assert body["object"] == "list" and body["model"] == "tiny"
    assert body["usage"]["prompt_tokens"] == 3
    assert body["data"][0]["token_counts"] == {"used": 3, "given": 3, "truncated": 0}


def test_weights_in_base64(bge_m3: LLM) -> None:
    items = post_json(
        make_client(bge_m3), "/v1/sparse_embeddings", input=TEXTS, encoding_format="base64", endianness="little"
    )

    for item, vector in zip(items, expected(bge_m3), strict=True):
        assert item["token_ids"] == vector["token_ids"]
        assert decode_base64(item["weights"]).tolist() == pytest.approx(vector["weights"], abs=1e-5)


@pytest.mark.parametrize("encoding_format", ["bytes", "bytes_only"])
def test_binary_encodings_are_refused_for_sparse_vectors(encoding_format: str, bge_m3: LLM) -> None:
    client = make_client(bge_m3)

    for path, fields in (("/v1/sparse_embeddings", {}), ("/pooling", {"task": "embed&sparse_embed"})):
        reply = client.post(path, json={"input": "a", "encoding_format": encoding_format} | fields)
        assert_refused(reply, "expected float or base64", "encoding_format")


def test_other_models_have_no_sparse_embeddings(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bert")
    tiny_bert(folder)

    with load_llm(folder) as llm:
        assert make_client(llm).post("/v1/sparse_embeddings", json={"input": "a"}).status_code == 400
        assert_refused(
            make_client(llm).post("/pooling", json={"input": "a", "task": "sparse_embed"}), "Unsupported task", "task"
        )
        assert_refused(
            make_client(llm).post("/pooling", json={"input": "a", "data": {"input": "a"}}),
            "cannot be combined",
            "body.data",
        )
        assert_refused(make_client(llm).post("/pooling", json={"data": {"input": "a"}}), "No IOProcessor plugin", None)


# the pooling route


@pytest.mark.parametrize("name", ["bge_m3", "splade"])
def test_the_pooling_route_returns_the_same(name: str, request: pytest.FixtureRequest) -> None:
    llm = request.getfixturevalue(name)

    items = post_json(make_client(llm), "/pooling", input=TEXTS, task="sparse_embed", return_tokens=True)

    for item, vector in zip(items, expected(llm, tokens=True), strict=True):
        assert item["object"] == "pooling"
        assert_same(item["data"], vector)


def test_token_weights_of_token_classify(bge_m3: LLM) -> None:
    items = post_json(make_client(bge_m3), "/pooling", input=TEXTS, task="token_classify")

    outputs = bge_m3.encode(TEXTS, pooling_task="token_classify", use_tqdm=False)
    for item, output in zip(items, outputs, strict=True):
        assert item["data"] == pytest.approx(output.outputs.data.tolist(), abs=1e-5)


def test_joined_tasks_return_results_by_task_name(bge_m3: LLM) -> None:
    client, tasks = make_client(bge_m3), ("embed", "sparse_embed", "token_embed", "token_classify")

    together = post_json(client, "/pooling", input=TEXTS, task="&".join(tasks), return_tokens=True)

    for task in tasks:
        separate = post_json(client, "/pooling", input=TEXTS, task=task, return_tokens=True)
        for one, other in zip(together, separate, strict=True):
            if task == "sparse_embed":
                assert_same(one["data"][task], other["data"])
            else:
                np.testing.assert_allclose(one["data"][task], other["data"], atol=1e-5)
    assert together[0]["data"].keys() == set(tasks)


def test_every_task_has_a_field_in_the_result_of_joined_tasks() -> None:
    assert TaskAnswers.__struct_fields__ == TASKS


def test_a_joined_task_that_the_model_lacks_is_refused(bge_m3: LLM) -> None:
    reply = make_client(bge_m3).post("/pooling", json={"input": "a", "task": "embed&classify"})

    assert_refused(reply, "Unsupported task: 'embed&classify'", "task")


def test_invocations_accept_joined_tasks(bge_m3: LLM) -> None:
    (item,) = post_json(make_client(bge_m3), "/invocations", input="the cat", task="embed&sparse_embed")

    assert item["data"].keys() == {"embed", "sparse_embed"}


# plugin body of vLLM


@pytest.mark.parametrize("embed_task", ["dense", "sparse", "dense&sparse", None])
def test_bge_m3_accepts_the_body_of_vllms_plugin(embed_task: str | None, bge_m3: LLM) -> None:
    client = make_client(bge_m3)
    data = {"input": TEXTS, "return_tokens": True} | ({"embed_task": embed_task} if embed_task else {})

    reply = client.post("/pooling", json={"data": data})

    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body.keys() == {"request_id", "created_at", "data"}
    vectors = [output.outputs.data.tolist() for output in bge_m3.embed(TEXTS, use_tqdm=False)]
    task = embed_task or "dense&sparse"
    for index, (entry, dense, sparse) in enumerate(
        zip(body["data"]["data"], vectors, expected(bge_m3, tokens=True), strict=True)
    ):
        assert (entry["index"], entry["object"]) == (index, task)
        if "dense" in task:
            assert entry["dense_embedding"] == pytest.approx(dense, abs=1e-5)
        else:
            assert entry["dense_embedding"] is None
        if "sparse" in task:
            weights = entry["sparse_embedding"]
            assert [weight["token"] for weight in weights] == sparse["tokens"]
            assert [weight["token_id"] for weight in weights] == sparse["token_ids"]
            assert [weight["weight"] for weight in weights] == pytest.approx(sparse["weights"], abs=1e-5)
        else:
            assert entry["sparse_embedding"] is None
    assert body["data"]["usage"]["prompt_tokens"] == int(reply.headers["x-prompt-tokens"])


def test_a_plugin_body_is_truncated(bge_m3: LLM) -> None:
    reply = make_client(bge_m3).post("/pooling", json={"data": {"input": TEXTS[0]}, "truncate_prompt_tokens": 4})

    assert reply.headers["x-prompt-tokens"] == "4"


def test_an_invalid_plugin_body_is_refused(bge_m3: LLM) -> None:
    client = make_client(bge_m3)

    assert_refused(client.post("/pooling", json={"data": {"input": "a", "embed_task": "thick"}}), "data: ", "body.data")
    assert_refused(client.post("/pooling", json={"data": 7}), "data: ", "body.data")
    assert_refused(client.post("/pooling", json={"data": {}}), "input is required", "body.input")


# scores


def test_sparse_scores(bge_m3: LLM, splade: LLM) -> None:
    body = {"queries": TEXTS[0], "documents": TEXTS}

    sparse = post_json(make_client(bge_m3), "/score", **body, score_type="sparse")
    assert [item["score"] for item in sparse] == pytest.approx(
        [output.outputs.score for output in bge_m3.score(TEXTS[0], TEXTS, score_type="sparse", use_tqdm=False)],
        abs=1e-5,
    )
    default, named = (
        post_json(make_client(splade), "/score", **body, **fields) for fields in ({}, {"score_type": "sparse"})
    )
    assert [item["score"] for item in default] == pytest.approx([item["score"] for item in named], abs=1e-5)
    (best, *_) = make_client(splade).post("/rerank", json={"query": TEXTS[0], "documents": TEXTS}).json()["results"]
    assert best["relevance_score"] == pytest.approx(
        max(output.outputs.score for output in splade.score(TEXTS[0], TEXTS, use_tqdm=False)), abs=1e-5
    )


# remote engine


@pytest.mark.parametrize("extra_tasks", [(), ("embed", "token_classify", "token_embed")])
def test_remote_results_equal_local_results(extra_tasks: Any, bge_m3: LLM) -> None:
    request = PoolRequest(task="sparse_embed", inputs=TEXTS, extra_tasks=extra_tasks)
    local, remote = call_both(bge_m3.engine, lambda engine: engine.pool(request))

    for one, other in zip(local, remote, strict=True):
        assert isinstance(one, PoolResult) and isinstance(other, PoolResult)
        assert np.array_equal(np.asarray(one.data), np.asarray(other.data))
        assert tuple(other.extra_data) == extra_tasks
        for task in extra_tasks:
            assert np.array_equal(np.asarray(one.extra_data[task]), np.asarray(other.extra_data[task]))

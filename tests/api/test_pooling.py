"""The pooling route returns the results of LLM.encode for every task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM, PoolingParams
from tests.api.app_client import add_chat_template, assert_refused, decode_base64, load_llm, make_client, post_json
from tests.factories import LLMFactory
from tests.plugins.conftest import InstallPlugin, install_plugin  # noqa: F401  # a fixture
from tests.tiny import change_config, tiny_bert, tiny_bert_classifier, tiny_bert_token_classifier, tiny_cross_encoder

TEXTS = ["the cat is in the city", "a", "how big is the old river?"]
MESSAGES = [{"role": "user", "content": "the old city"}]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    """Matryoshka model of sizes 8 and 32."""
    folder = tmp_path_factory.mktemp("embedder")
    tiny_bert(folder)
    change_config(folder, matryoshka_dimensions=[8, 32])
    add_chat_template(folder)
    return open_llm(folder)


@pytest.fixture(scope="module")
def cross_encoder(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_cross_encoder)


@pytest.fixture(scope="module")
def token_classifier(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_bert_token_classifier)


def post_pooling(client: TestClient, **body: Any) -> list[Any]:
    return [item["data"] for item in post_json(client, "/pooling", **body)["data"]]


def encode_offline(llm: LLM, task: str, prompts: Any = TEXTS, **params: Any) -> list[Any]:
    outputs = llm.encode(prompts, PoolingParams(**params), pooling_task=task, use_tqdm=False)
    return [output.outputs.data.numpy() for output in outputs]


def assert_same(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert np.shape(mine) == np.shape(other)
        np.testing.assert_allclose(mine, other, atol=1e-5)


# tasks


def test_an_embedding_model_returns_embeddings_and_token_embeddings(embedder: LLM) -> None:
    client = make_client(embedder)

    assert_same(post_pooling(client, input=TEXTS, task="embed"), encode_offline(embedder, "embed"))
    assert_same(post_pooling(client, input=TEXTS, task="token_embed"), encode_offline(embedder, "token_embed"))
    assert np.shape(post_pooling(client, input=TEXTS[0], task="token_embed")[0]) == (8, 32)


def test_score_is_an_alias_of_classify_for_a_cross_encoder(cross_encoder: LLM) -> None:
    client = make_client(cross_encoder)

    assert_same(post_pooling(client, input=TEXTS, task="classify"), encode_offline(cross_encoder, "classify"))
    assert_same(post_pooling(client, input=TEXTS, task="score"), encode_offline(cross_encoder, "classify"))
    assert_same(
        post_pooling(client, input=TEXTS, task="token_classify"), encode_offline(cross_encoder, "token_classify")
    )
    assert np.shape(post_pooling(client, input="a", task="score")) == (1, 1)


def test_without_a_task_the_default_task_is_run(embedder: LLM, cross_encoder: LLM, token_classifier: LLM) -> None:
    for llm, task in ((embedder, "embed"), (cross_encoder, "classify"), (token_classifier, "token_classify")):
        assert_same(post_pooling(make_client(llm), input=TEXTS), encode_offline(llm, task))


def test_a_token_classifier_returns_probabilities_per_token(token_classifier: LLM) -> None:
    rows = post_pooling(make_client(token_classifier), input=TEXTS[0])[0]

    assert np.shape(rows) == (8, 3)
    np.testing.assert_allclose(np.sum(rows, axis=1), 1, atol=1e-5)
    logits = post_pooling(make_client(token_classifier), input=TEXTS[0], use_activation=False)[0]
    assert_same([logits], encode_offline(token_classifier, "token_classify", TEXTS[0], use_activation=False))


def test_unsupported_tasks_are_refused_with_the_supported_ones(embedder: LLM, token_classifier: LLM) -> None:
    client = make_client(embedder)
    for task, words in (
        ("classify", "Unsupported task: 'classify' Supported tasks: ('embed', 'token_embed')"),
        ("dance", "Unsupported task: 'dance' Supported tasks: ('embed', 'token_embed')"),
        ("score", "task `score` requires a cross-encoder; this model supports ('embed', 'token_embed')"),
        ("encode", "`encode` task was removed; use `token_embed` or `token_classify` instead."),
        ("", "Unsupported task: ''"),
    ):
        reply = client.post("/pooling", json={"input": "a", "task": task})
        assert_refused(reply, words, "task")
        assert reply.json()["error"]["message"].startswith(words)
        assert reply.json()["error"]["type"] == "BadRequestError"
    reply = make_client(token_classifier).post("/pooling", json={"input": "a", "task": "embed"})
    assert_refused(reply, "Unsupported task: 'embed' Supported tasks: ('token_classify',)", "task")
    assert_refused(client.post("/pooling", json={"input": "a", "task": 5}), "task: expected str", "body.task")


def test_the_error_for_a_task_that_the_pooler_config_excludes_names_the_option(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)
    with load_llm(tmp_path, pooler_config={"task": "token_classify"}) as llm:
        client = make_client(llm)
        excluded = client.post("/pooling", json={"input": "a", "task": "classify"})
        unsupported = client.post("/pooling", json={"input": "a", "task": "embed"})
        classify = client.post("/classify", json={"input": "a"})

    assert_refused(
        excluded, "Try switching the model's pooling_task via --pooler-config.task classify. It is restricted", "task"
    )
    assert excluded.json()["error"]["message"].startswith("Try switching")
    assert excluded.json()["error"]["type"] == "BadRequestError"
    assert_refused(unsupported, "Unsupported task: 'embed' Supported tasks: ('token_classify',)", "task")
    assert_refused(classify, "The model does not support Classification API.", None)


# parameters


def test_dimensions_truncate_embeddings_and_token_embeddings(embedder: LLM) -> None:
    client = make_client(embedder)

    assert_same(post_pooling(client, input=TEXTS, dimensions=8), encode_offline(embedder, "embed", dimensions=8))
    rows = post_pooling(client, input=TEXTS, task="token_embed", dimensions=8)
    assert_same(rows, encode_offline(embedder, "token_embed", dimensions=8))
    assert np.shape(rows[0]) == (8, 8)


def test_unsupported_dimensions_are_refused(embedder: LLM, cross_encoder: LLM, llm: LLM) -> None:
    for client, words, param in (
        (make_client(embedder), 'Model "tiny" only supports [8, 32] matryoshka dimensions', None),
        (make_client(cross_encoder), "Task 'classify' only supports ['use_activation'] parameters", "dimensions"),
        (make_client(llm), 'Model "mini" does not support matryoshka representation', None),
    ):
        assert_refused(client.post("/pooling", json={"input": "a", "dimensions": 16}), words, param)


def test_token_ids_conversations_and_truncation(embedder: LLM) -> None:
    client = make_client(embedder)

    assert_same(
        post_pooling(client, input=[7, 8, 9], task="token_embed"), encode_offline(embedder, "token_embed", [[7, 8, 9]])
    )
    for body in ({"messages": MESSAGES}, {"input": MESSAGES}, {"messages": [MESSAGES]}):
        ids = client.post("/tokenize", json={"prompt": "user: the old city.", "add_special_tokens": False}).json()
        assert_same(
            post_pooling(client, task="token_embed", **body), encode_offline(embedder, "token_embed", [ids["tokens"]])
        )
    truncated = post_pooling(
        client, input=TEXTS[0], task="token_embed", truncate_prompt_tokens=4, truncation_side="left"
    )
    assert np.shape(truncated) == (1, 4, 32)
    assert_refused(client.post("/pooling", json={"input": []}), "You must pass at least one prompt", "input")


# replies


def test_a_response_has_an_id_the_model_name_and_usage(embedder: LLM) -> None:
    client = make_client(embedder)
    body = {"input": TEXTS, "truncate_prompt_tokens": 5, "return_token_counts": True}

    one, two = (client.post(path, json=body, headers={"x-request-id": "r-1"}) for path in ("/pooling", "/v1/pooling"))

    reply = one.json()
    assert (reply["id"], reply["object"], reply["model"]) == ("pooling-r-1", "list", "tiny")
    assert [item["index"] for item in reply["data"]] == [0, 1, 2]
    assert {item["object"] for item in reply["data"]} == {"pooling"}
    assert [item["token_counts"]["truncated"] for item in reply["data"]] == [3, 0, 4]
    assert reply["usage"]["prompt_tokens"] == 5 + 3 + 5
    assert one.headers["x-truncated-inputs"] == "2"
    assert two.json()["data"] == reply["data"]


def test_base64_of_token_embeddings_is_row_major(embedder: LLM) -> None:
    client = make_client(embedder)
    rows = post_pooling(client, input=TEXTS, task="token_embed")

    packed = post_pooling(client, input=TEXTS, task="token_embed", encoding_format="base64")

    assert_same([decode_base64(text).reshape(-1, 32) for text in packed], rows)


def test_the_metadata_header_has_the_shapes(embedder: LLM) -> None:
    client = make_client(embedder)
    body = {"input": TEXTS, "task": "token_embed", "encoding_format": "bytes", "embed_dtype": "float16"}

    reply = client.post("/pooling", json=body)

    metadata = json.loads(reply.headers["metadata"])
    assert [part["shape"] for part in metadata["data"]] == [[8, 32], [3, 32], [9, 32]]
    assert metadata["id"].startswith("pooling-")
    parts = [
        np.frombuffer(reply.content[part["start"] : part["end"]], dtype=np.float16).reshape(part["shape"])
        for part in metadata["data"]
    ]
    for part, rows in zip(parts, post_pooling(client, input=TEXTS, task="token_embed"), strict=True):
        np.testing.assert_allclose(part, rows, atol=2e-3)
    body_only = client.post("/pooling", json=body | {"encoding_format": "bytes_only"})
    assert body_only.content == reply.content
    assert "metadata" not in body_only.headers


# plugins

LENGTHS = """
    from cenote.plugins import IOProcessor

    class Lengths(IOProcessor):
        def parse_data(self, data):
            if not isinstance(data, list):
                raise ValueError("data is a list of texts")
            return data

        def pre_process(self, prompt, request_id=None, **kwargs):
            return prompt

        def post_process(self, model_output, request_id=None, **kwargs):
            return {"lengths": [len(output.prompt_token_ids) for output in model_output], "request_id": request_id}

    def entry():
        return "THIS.Lengths"
"""


def test_data_is_processed_by_the_plugin(install_plugin: InstallPlugin, tmp_path: Path) -> None:  # noqa: F811
    tiny_bert(tmp_path)
    install_plugin("lengths", LENGTHS)
    with load_llm(tmp_path, io_processor_plugin="lengths") as llm:
        client = make_client(llm)
        reply = client.post("/pooling", json={"data": TEXTS, "priority": 1}, headers={"x-request-id": "r-5"})
        invoked = client.post("/invocations", json={"data": TEXTS}, headers={"x-request-id": "r-5"})
        truncated = client.post("/pooling", json={"data": TEXTS, "truncate_prompt_tokens": 4})
        post_pooling(client, input="a")
        for body, words, param in (
            ({"data": "a"}, "data is a list of texts", "data"),
            ({"task": "plugin"}, "The 'data' field of the prompt is expected to contain the prompt data", "data"),
            ({"data": ["a"], "task": "embed"}, "The 'data' field is only supported for the 'plugin'", "data"),
            ({"data": ["a"], "messages": MESSAGES}, "data cannot be combined with input or messages", "body.data"),
        ):
            assert_refused(client.post("/pooling", json=body), words, param)

    assert reply.json().keys() == {"request_id", "created_at", "data"}
    assert reply.json()["request_id"] == "pooling-r-5"
    assert reply.json()["data"] == {"lengths": [8, 3, 9], "request_id": "pooling-r-5"}
    assert invoked.json()["data"] == reply.json()["data"]
    assert reply.headers["x-prompt-tokens"] == "20"
    assert truncated.json()["data"]["lengths"] == [4, 3, 4]
    assert truncated.headers["x-truncated-inputs"] == "2"


def test_data_without_a_plugin_is_refused(embedder: LLM) -> None:
    client = make_client(embedder)

    for body in ({"data": {"a": 1}}, {"data": 0, "task": "plugin"}, {"input": "a", "task": "plugin"}):
        reply = client.post("/pooling", json=body)
        assert_refused(reply, "No IOProcessor plugin installed.", None)
        assert "examples/near_duplicates" in reply.json()["error"]["message"]
    reply = client.post("/pooling", json={"data": {"a": 1}, "task": "embed"})
    assert_refused(reply, "The 'data' field is only supported for the 'plugin' pooling task.", "data")
    reply = client.post("/pooling", json={"data": {"a": 1}, "input": "a"})
    assert_refused(reply, "data cannot be combined with input or messages", "body.data")

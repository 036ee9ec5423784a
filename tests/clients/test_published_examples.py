"""Requests printed in guides to pooling models, sent with curl and requests; only host, port and model name differ."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import requests

from tests.clients.conftest import KEY, RunningServer, is_close

PROMPTS = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
LEARNING = "What is machine learning?"
ABOUT_LEARNING = [
    "Machine learning is a subset of artificial intelligence.",
    "Python is a programming language.",
    "Deep learning uses neural networks.",
]
FRANCE = "What is the capital of France?"
ABOUT_FRANCE = ["The capital of France is Paris.", "Python is a programming language."]
TERMS = ["What is BGE M3?", "Defination of BM25"]
BEIJING = "Retrieve the city of Beijing"
IMAGE_MESSAGES = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    {"type": "text", "text": "Describe the image."},
]

SendRequest = Callable[[RunningServer, str, dict[str, Any]], Any]


def curl(server: RunningServer, path: str, body: dict[str, Any], *arguments: str) -> Any:
    """Return the body of the response, whatever its status."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    data = json.dumps({"model": server.model} | body, indent=2)
    arguments = ("-H", "Content-Type: application/json", *arguments, "-d", data)
    done = subprocess.run(["curl", "-s", server.url + path, *arguments], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def post(server: RunningServer, path: str, body: dict[str, Any]) -> Any:
    reply = requests.post(server.url + path, json={"model": server.model} | body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def encode(server: RunningServer, prompts: Any, task: str) -> list[np.ndarray[Any, Any]]:
    outputs = server.llm.encode(prompts, pooling_task=task, use_tqdm=False)
    return [np.asarray(output.outputs.data) for output in outputs]


def scores(reply: Any) -> list[float]:
    assert [item["index"] for item in reply["data"]] == list(range(len(reply["data"])))
    return [item["score"] for item in reply["data"]]


def ranking(reply: Any) -> list[tuple[int, float]]:
    return [(result["index"], result["relevance_score"]) for result in reply["results"]]


def sort_by_score(scores: list[float]) -> list[tuple[int, float]]:
    return sorted(enumerate(scores), key=lambda item: -item[1])


def test_curl_requests_an_embedding_of_32_dimensions(embedder: RunningServer) -> None:
    body = {"input": "Follow the white rabbit.", "encoding_format": "float", "dimensions": 32}
    reply = curl(embedder, "/v1/embeddings", body, "-H", "accept: application/json")

    cut = embedder.embed(["Follow the white rabbit."])[0, :32]
    assert is_close(reply["data"][0]["embedding"], cut / np.linalg.norm(cut))
    assert reply["id"].startswith("embd-") and reply["object"] == "list" and reply["created"] > 1_700_000_000
    assert reply["usage"] == {
        "prompt_tokens": 7,
        "total_tokens": 7,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def test_curl_gets_the_documented_error_for_dimensions_without_matryoshka(protected_server: RunningServer) -> None:
    body = {"input": "Follow the white rabbit.", "encoding_format": "float", "dimensions": 16}
    reply = curl(protected_server, "/v1/embeddings", body, "-H", f"Authorization: Bearer {KEY}")

    text = "does not support matryoshka representation, changing output dimensions will lead to poor results."
    documented = {"object": "error", "type": "BadRequestError", "param": None, "code": 400}
    assert reply.items() >= {**documented, "message": f'Model "tiny" {text}'}.items()


@pytest.mark.parametrize("send", [curl, post], ids=["curl", "requests"])
@pytest.mark.parametrize("name", ["embedder", "reranker"])
def test_documents_are_ranked(request: pytest.FixtureRequest, name: str, send: SendRequest) -> None:
    server: RunningServer = request.getfixturevalue(name)
    reply = send(server, "/rerank", {"query": LEARNING, "documents": ABOUT_LEARNING})

    expected = sort_by_score(server.score(LEARNING, ABOUT_LEARNING))
    assert is_close(ranking(reply), expected)
    assert [result["document"]["text"] for result in reply["results"]] == [ABOUT_LEARNING[i] for i, _ in expected]


def test_a_real_embedder_and_a_real_cross_encoder_rank_the_related_documents_first(
    embedder: RunningServer, cross_encoder: RunningServer
) -> None:
    body = {"query": LEARNING, "documents": ABOUT_LEARNING}

    for server in (embedder, cross_encoder):
        assert [index for index, _ in ranking(curl(server, "/rerank", body))] == [0, 2, 1]


@pytest.mark.parametrize("send", [curl, post], ids=["curl", "requests"])
@pytest.mark.parametrize(
    ("query", "documents"), [(LEARNING, ABOUT_LEARNING[:2]), (FRANCE, ABOUT_FRANCE)], ids=["ml", "fr"]
)
def test_one_text_is_scored_against_several(
    embedder: RunningServer, send: SendRequest, query: str, documents: list[str]
) -> None:
    reply = send(embedder, "/score", {"text_1": query, "text_2": documents})

    assert is_close(scores(reply), embedder.score(query, documents))
    assert scores(reply)[0] > scores(reply)[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is the capital of Brazil?", "The capital of Brazil is Brasilia."),
        ("What is the capital of France?", ["The capital of Brazil is Brasilia.", "The capital of France is Paris."]),
        ([LEARNING, FRANCE], [ABOUT_LEARNING[0], ABOUT_FRANCE[0]]),
    ],
    ids=["1:1", "1:N", "N:N"],
)
def test_pairs_are_scored_by_a_cross_encoder(reranker: RunningServer, one: Any, other: Any) -> None:
    reply = post(reranker, "/score", {"text_1": one, "text_2": other})

    assert is_close(scores(reply), reranker.score(one, other))
    outputs = reranker.llm.score(one, other, use_tqdm=False)
    assert reply["usage"]["prompt_tokens"] == sum(len(output.prompt_token_ids) for output in outputs)


def test_a_real_cross_encoder_scores_the_matching_document_highest(cross_encoder: RunningServer) -> None:
    reply = post(
        cross_encoder, "/v1/score", {"text_1": FRANCE, "text_2": [*ABOUT_FRANCE, "The capital of Brazil is Brasilia."]}
    )

    assert is_close(scores(reply), cross_encoder.score(FRANCE, [*ABOUT_FRANCE, "The capital of Brazil is Brasilia."]))
    assert int(np.argmax(scores(reply))) == 0


def test_requests_pools_one_vector_for_every_prompt(embedder: RunningServer) -> None:
    reply = post(embedder, "/pooling", {"input": PROMPTS, "task": "embed"})

    assert is_close([item["data"] for item in reply["data"]], embedder.embed(PROMPTS))
    assert reply["usage"]["prompt_tokens"] == embedder.num_tokens(PROMPTS)


@pytest.mark.parametrize("prompts", [LEARNING, TERMS], ids=["one", "several"])
def test_curl_pools_a_vector_for_every_token(embedder: RunningServer, prompts: Any) -> None:
    reply = curl(embedder, "/pooling", {"input": prompts, "task": "token_embed"})

    expected = encode(embedder, prompts, "token_embed")
    assert len(reply["data"]) == len(expected)
    for item, rows in zip(reply["data"], expected, strict=True):
        assert is_close(item["data"], rows)


def test_curl_pools_a_weight_for_every_token_of_tokenize(classifier: RunningServer) -> None:
    reply = curl(classifier, "/pooling", {"input": TERMS, "task": "token_classify"})

    for item, rows, prompt in zip(reply["data"], encode(classifier, TERMS, "token_classify"), TERMS, strict=True):
        assert is_close(item["data"], rows)
        tokens = curl(classifier, "/tokenize", {"prompt": prompt})["tokens"]
        assert len(tokens) == len(item["data"]) and tokens == classifier.ids(prompt)


@pytest.mark.parametrize("prompts", [PROMPTS[:2], PROMPTS[0]], ids=["several", "one"])
def test_requests_classifies(classifier: RunningServer, prompts: Any) -> None:
    reply = post(classifier, "/classify", {"input": prompts})

    expected = [output.outputs.probs for output in classifier.llm.classify(prompts, use_tqdm=False)]
    assert is_close([item["probs"] for item in reply["data"]], expected)
    assert [item["label"] for item in reply["data"]] == [["good", "bad"][int(np.argmax(row))] for row in expected]
    assert all(item["num_classes"] == 2 for item in reply["data"])


def test_conversations_are_pooled_with_the_models_chat_template(classifier: RunningServer) -> None:
    content = [{"type": "text", "text": "Describe the image."}]
    reply = curl(classifier, "/pooling", {"messages": [{"role": "user", "content": content}]})

    assert is_close(reply["data"][0]["data"], encode(classifier, "user: Describe the image..", "classify")[0])


def test_content_parts_are_scored_as_their_texts(embedder: RunningServer) -> None:
    parts = [{"content": [{"type": "text", "text": text}]} for text in ABOUT_FRANCE]

    scored = curl(embedder, "/score", {"data_1": FRANCE, "data_2": parts})
    reranked = curl(embedder, "/rerank", {"query": FRANCE, "documents": parts, "top_n": 1})

    expected = embedder.score(FRANCE, ABOUT_FRANCE)
    assert is_close(scores(scored), expected)
    assert is_close(ranking(reranked), sort_by_score(expected)[:1])


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("embedder", "/score", {"data_1": BEIJING, "data_2": [{"content": IMAGE_MESSAGES}]}),
        ("embedder", "/rerank", {"query": BEIJING, "documents": [{"content": IMAGE_MESSAGES}] * 2, "top_n": 2}),
        ("classifier", "/pooling", {"messages": [{"role": "user", "content": IMAGE_MESSAGES}]}),
    ],
    ids=["score", "rerank", "pooling"],
)
def test_a_text_model_refuses_images(
    request: pytest.FixtureRequest, name: str, path: str, body: dict[str, Any]
) -> None:
    reply = curl(request.getfixturevalue(name), path, body)

    assert reply["code"] == 400
    assert "image_url" in reply["message"] and "text" in reply["message"], reply["message"]

"""The samples of the guide for the server, sent to `cenote serve` processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from openai import OpenAI
from torch.testing import assert_close

from cenote import LLM
from tests.api.app_client import make_client
from tests.seeds.checkpoints import GREETING, Models, data_of, encode, score
from tests.seeds.conftest import CLASSIFIER, EMBEDDER, RERANKER
from tests.serving.server_process import ServerProcess

PROMPTS = [GREETING, "The president of the United States is", "The capital of France is", "The future of AI is"]
QUESTION, ANSWERS = "What is the capital of Brazil?", ["The capital of Brazil is Brasilia.", "a red bird"]


def post(server: ServerProcess, route: str, **body: Any) -> Any:
    with server.client() as client:
        reply = client.post(route, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_sample_pooling_with_task_embed(embedding_server: ServerProcess, llm: LLM) -> None:
    reply = post(embedding_server, "/pooling", model=EMBEDDER, input=PROMPTS, task="embed")

    vectors = torch.tensor([output["data"] for output in reply["data"]])
    assert_close(vectors, torch.stack(encode(llm, PROMPTS, "embed")), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "task"), [("bert", "token_embed"), ("bert tagger", "token_classify")])
def test_pooling_returns_nested_lists(name: str, task: str, models: Models) -> None:
    llm = models.load(name)

    reply = make_client(llm).post("/pooling", json={"input": PROMPTS, "task": task}).json()

    assert_close([torch.tensor(item["data"]) for item in reply["data"]], encode(llm, PROMPTS, task))
    assert all(type(item["data"][0][0]) is float for item in reply["data"])


def test_embeddings_api(embedding_server: ServerProcess, llm: LLM) -> None:
    with OpenAI(api_key="EMPTY", base_url=f"{embedding_server.address}/v1") as client:
        response = client.embeddings.create(input=PROMPTS, model=EMBEDDER)

    vectors = torch.tensor([item.embedding for item in response.data])
    assert_close(vectors, torch.stack(encode(llm, PROMPTS, "embed")), atol=1e-4, rtol=1e-4)


def test_classification_api(classifier_server: ServerProcess, models: Models) -> None:
    reply = post(classifier_server, "/classify", model=CLASSIFIER, input=PROMPTS)

    expected = data_of(models.load("apeach").classify(PROMPTS, use_tqdm=False))
    labels = [["good", "bad"][int(row.argmax())] for row in expected]
    assert [item["label"] for item in reply["data"]] == labels
    assert [item["num_classes"] for item in reply["data"]] == [2] * 4
    assert_close(torch.tensor([item["probs"] for item in reply["data"]]), torch.stack(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents")])
def test_score_api(names: tuple[str, str], reranker_server: ServerProcess, models: Models) -> None:
    reply = post(reranker_server, "/score", model=RERANKER, **dict(zip(names, (QUESTION, ANSWERS), strict=True)))

    expected = score(models.load("bge-reranker"), QUESTION, ANSWERS)
    assert [item["score"] for item in reply["data"]] == pytest.approx(expected, abs=1e-5)


def test_classify_requests_sample(classifier_server: ServerProcess) -> None:
    reply = post(classifier_server, "/classify", model=CLASSIFIER, input=PROMPTS[:2])

    assert [sum(item["probs"]) for item in reply["data"]] == pytest.approx([1, 1], abs=1e-5)
    assert (reply["object"], reply["model"]) == ("list", CLASSIFIER)


def test_score_cross_encoder_sample(reranker_server: ServerProcess, models: Models) -> None:
    reply = post(reranker_server, "/score", model="BAAI/bge-reranker-v2-m3", text_1=QUESTION, text_2=ANSWERS[0])

    (item,) = reply["data"]
    assert [item["score"]] == pytest.approx(score(models.load("bge-reranker"), QUESTION, ANSWERS[0]), abs=1e-5)

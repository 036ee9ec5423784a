"""Shapes of scoring requests, rerankers that are language models, and Cohere's client."""

from __future__ import annotations

from typing import Any

import cohere
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, BadRequest
from tests.scoring.test_rerankers import DOCUMENTS, QUERY, RERANKER_KINDS, qwen3, reference_scores
from tests.seeds.checkpoints import Models, encode, score
from tests.seeds.conftest import RERANKER
from tests.serving.server_process import ServerProcess

KIND = RERANKER_KINDS["Qwen3-Reranker-0.6B"]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@pytest.fixture
def qwen3_reranker(models: Models) -> LLM:
    return models.load("qwen3 reranker", runner="pooling", hf_overrides=KIND.overrides)


def expected_scores(models: Models) -> list[float]:
    return reference_scores(models.reference("qwen3 reranker"), models.folder("qwen3 reranker"), KIND)


def test_one_to_one_one_to_many_and_many_to_many(models: Models) -> None:
    llm = models.load("bge-reranker")

    ((first,), (second,)) = (score(llm, QUERY, document) for document in DOCUMENTS[:2])
    assert score(llm, QUERY, DOCUMENTS[:2]) == pytest.approx([first, second], abs=1e-5)
    assert score(llm, [QUERY, QUERY], DOCUMENTS[:2]) == pytest.approx([first, second], abs=1e-5)
    for queries, documents in (([QUERY] * 2, DOCUMENTS[:3]), ([QUERY] * 2, DOCUMENTS[:1])):
        with pytest.raises(BadRequest, match="1:1, 1:N or N:N"):
            score(llm, queries, documents)


def test_qwen3_reranker_hf_overrides(models: Models, qwen3_reranker: LLM) -> None:
    expected = expected_scores(models)

    assert score(qwen3_reranker, QUERY, DOCUMENTS) == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 1e-3


def test_qwen3_reranker_texts_that_are_already_formatted(models: Models, qwen3_reranker: LLM) -> None:
    """The example formats queries and documents itself: both parts together are the model's prompt."""
    prompts = [qwen3(QUERY, document, INSTRUCTION) for document in DOCUMENTS]
    marker = "<Document>: "
    queries, documents = zip(*(prompt.split(marker) for prompt in prompts), strict=True)

    scores = score(qwen3_reranker, list(queries), [marker + document for document in documents])

    assert scores == pytest.approx(expected_scores(models), abs=1e-4)


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning:cohere")
@pytest.mark.parametrize("client_class", [cohere.Client, cohere.ClientV2])
def test_cohere_rerank(client_class: Any, reranker_server: ServerProcess, models: Models) -> None:
    documents = ["The capital of France is Paris", "Reranking is fun!"]

    with client_class(base_url=reranker_server.address, api_key="sk-fake-key") as client:
        result = client.rerank(model=RERANKER, query="What is the capital of France?", documents=documents)

    expected = score(models.load("bge-reranker"), "What is the capital of France?", documents)
    by_index = {item.index: item.relevance_score for item in result.results}
    assert [by_index[0], by_index[1]] == pytest.approx(expected, abs=1e-5)
    assert result.results[0].relevance_score == max(by_index.values())


def test_multi_vector_retrieval(models: Models) -> None:
    llm = models.load("bge-m3")
    prompts = ["the cat", "a red bird in the city"]

    outputs = llm.encode(prompts, pooling_task="token_embed")

    for output in outputs:
        assert output.outputs.data.shape == (len(output.prompt_token_ids) - 1, 32)  # bge-m3: no row for the first token
    assert_close(encode(llm, prompts[0], "token_embed"), [outputs[0].outputs.data])


def test_jina_reranker_v3(models: Models) -> None:
    llm = models.load("jina reranker")

    scores = score(llm, QUERY, DOCUMENTS)

    assert len(set(scores)) == len(DOCUMENTS) and max(map(abs, scores)) <= 1
    (rows,) = encode(llm, [*DOCUMENTS, QUERY], "token_embed")  # documents, then the query
    assert F.cosine_similarity(rows[:-1], rows[-1:]).tolist() == pytest.approx(scores, abs=1e-4)
    assert rows.dtype == torch.float32

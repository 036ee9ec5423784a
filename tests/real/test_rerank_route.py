"""A real cross-encoder behind the rerank routes, called by the Cohere client."""

from __future__ import annotations

import pytest

from cenote import LLM
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.real.conftest import model_folder

NAME = "ms-marco-MiniLM-L12-v2"
QUERY = "How many people live in Berlin?"
DOCUMENTS = [
    "Berlin is well known for its museums.",
    "Berlin has a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "The museums of Paris are old. " * 300,
]


@pytest.fixture(scope="module")
def llm(open_llm: LLMFactory) -> LLM:
    return open_llm(model_folder(NAME))


def test_the_document_about_berlin_ranks_first_and_a_long_document_is_truncated(llm: LLM) -> None:
    client = make_client(llm)
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": None, "max_tokens_per_doc": None}
    expected = llm.score(QUERY, DOCUMENTS, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})

    reply = client.post("/v2/rerank", json=body)

    found = reply.json()
    assert [result["index"] for result in found["results"]] == [1, 0, 2]
    for result in found["results"]:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]].outputs.score, abs=1e-4)
    assert found["usage"]["prompt_tokens"] == sum(len(each.prompt_token_ids) for each in expected)
    assert reply.headers["x-truncated-inputs"] == "1"
    assert client.post("/v1/rerank", json=body).json()["results"] == found["results"]

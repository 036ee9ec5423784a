"""langchain-openai and langchain-cohere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import openai
import pytest
import tiktoken
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_core.documents import Document
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.clients.conftest import DOCUMENTS, KEY, PROMPTS, QUERY, TEXTS, RunningServer, is_close

# langchain-cohere asks through version 1 of cohere, which joins replies by methods that pydantic is about to drop
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning:cohere")


@pytest.fixture
def openai_embeddings(embedder: RunningServer) -> Iterator[Callable[..., OpenAIEmbeddings]]:
    place: Any = {"model": "mini", "base_url": f"{embedder.url}/v1", "api_key": SecretStr("EMPTY")}
    with httpx.Client() as client:  # one that is closed: its own stays open until the end of the process
        yield lambda **options: OpenAIEmbeddings(**place, http_client=client, **options)


def test_openai_embeddings_are_those_of_the_model(embedder: RunningServer, openai_embeddings: Any) -> None:
    embeddings = openai_embeddings(check_embedding_ctx_length=False)

    assert is_close(embeddings.embed_documents(TEXTS), embedder.embed(TEXTS))
    assert is_close(embeddings.embed_query(TEXTS[2]), embedder.embed(TEXTS[2:])[0])


def test_openai_embeddings_come_asynchronously(embedder: RunningServer, openai_embeddings: Any) -> None:
    async def ask() -> list[list[float]]:
        async with httpx.AsyncClient() as client:
            embeddings = openai_embeddings(check_embedding_ctx_length=False, http_async_client=client)
            return cast(list[list[float]], await embeddings.aembed_documents(TEXTS))

    assert is_close(asyncio.run(ask()), embedder.embed(TEXTS))


def test_openai_embeddings_of_a_chosen_size(openai_embeddings: Any) -> None:
    embeddings = openai_embeddings(check_embedding_ctx_length=False, dimensions=32)

    assert [len(vector) for vector in embeddings.embed_documents(TEXTS)] == [32, 32, 32]


def test_openai_embeddings_send_texts_in_groups(embedder: RunningServer, openai_embeddings: Any) -> None:
    embeddings = openai_embeddings(check_embedding_ctx_length=False, chunk_size=2)

    assert is_close(embeddings.embed_documents(TEXTS), embedder.embed(TEXTS))


@pytest.mark.usefixtures("openai_tokenizer")
def test_openai_embeddings_by_default_send_openais_token_ids(embedder: RunningServer, openai_embeddings: Any) -> None:
    """Which are other words here: what does not exist in this vocabulary is refused instead of guessed."""
    embeddings = openai_embeddings()
    ids = tiktoken.get_encoding("cl100k_base").encode("a big house")
    assert max(ids) < 30_522

    assert is_close(embeddings.embed_query("a big house"), embedder.embed([{"prompt_token_ids": ids}])[0])
    with pytest.raises(openai.BadRequestError, match="ids go from 0 to 30521"):
        embeddings.embed_query("snow ☃ and a cenote")


def test_cohere_embeddings_use_the_prompts_of_the_model(guarded: RunningServer) -> None:
    embeddings = CohereEmbeddings(model="tiny", base_url=guarded.url, cohere_api_key=KEY)  # type: ignore[call-arg,arg-type]

    async def ask() -> list[float]:
        async with embeddings.async_client:
            return await embeddings.aembed_query(QUERY)

    with embeddings.client:
        documents, query = embeddings.embed_documents(TEXTS), embeddings.embed_query(QUERY)
    assert is_close(documents, guarded.embed(TEXTS, prompt=PROMPTS["document"]))
    assert is_close(query, guarded.embed([QUERY], prompt=PROMPTS["query"])[0])
    assert is_close(asyncio.run(ask()), query)


def test_cohere_rerank_leaves_limits_null(reranker: RunningServer) -> None:
    rerank = CohereRerank(model="pairs", base_url=reranker.url, cohere_api_key=SecretStr("sk-fake-key"))

    with rerank.client:
        found = rerank.rerank(DOCUMENTS, QUERY)
        everything = rerank.rerank(DOCUMENTS, QUERY, top_n=None)

    scores = reranker.score(QUERY, DOCUMENTS)
    order = sorted(range(4), key=lambda place: -scores[place])
    assert [each["index"] for each in everything] == order
    assert [each["index"] for each in found] == order[:3]  # its own number of documents
    assert is_close([each["relevance_score"] for each in everything], sorted(scores, reverse=True))


def test_cohere_rerank_compresses_documents(judge: RunningServer) -> None:
    rerank = CohereRerank(model=judge.model, base_url=judge.url, cohere_api_key=SecretStr("sk-fake-key"), top_n=1)
    texts = ["Berlin is well known for its museums.", "Berlin had a population of 3,520,031 in 2020."]
    documents = [Document(text, metadata={"place": place}) for place, text in enumerate(texts)]

    with rerank.client:
        (found,) = rerank.compress_documents(documents, "How many people live in Berlin?")

    assert found.metadata["place"] == 1
    expected = judge.score("How many people live in Berlin?", texts)[1]
    assert found.metadata["relevance_score"] == pytest.approx(expected, abs=1e-4)

"""langchain-openai and langchain-cohere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import openai
import pytest
import tiktoken
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_core.documents import Document
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.api.app_client import make_client
from tests.clients.conftest import DOCUMENTS, KEY, PROMPTS, QUERY, TEXTS, RunningServer, is_close

# langchain-cohere uses version 1 of cohere, which merges responses with deprecated methods of pydantic
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning:cohere")


def make_openai_embeddings(server: RunningServer, client: Any, **options: Any) -> OpenAIEmbeddings:
    settings: Any = {"model": server.model, "base_url": f"{server.url}/v1", "api_key": SecretStr("EMPTY")}
    return OpenAIEmbeddings(**settings, http_client=client, **options)


@pytest.fixture
def openai_embeddings(embedder: RunningServer) -> Iterator[Callable[..., OpenAIEmbeddings]]:
    with httpx.Client() as client:  # closed here: the default client stays open until the process exits
        yield lambda **options: make_openai_embeddings(embedder, client, **options)


class WarnedClient(httpx.Client):
    """Keeps the header `warning` of every response; empty for those without it."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        super().__init__(
            event_hooks={"response": [lambda reply: self.warnings.append(reply.headers.get("warning", ""))]}
        )


def cosine(one: Any, other: Any) -> float:
    return float(np.dot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other)))


def test_openai_embeddings_equal_those_of_the_model(embedder: RunningServer, openai_embeddings: Any) -> None:
    embeddings = openai_embeddings(check_embedding_ctx_length=False)

    assert is_close(embeddings.embed_documents(TEXTS), embedder.embed(TEXTS))
    assert is_close(embeddings.embed_query(TEXTS[2]), embedder.embed(TEXTS[2:])[0])


def test_openai_embeddings_asynchronously(embedder: RunningServer, openai_embeddings: Any) -> None:
    async def embed() -> list[list[float]]:
        async with httpx.AsyncClient() as client:
            embeddings = openai_embeddings(check_embedding_ctx_length=False, http_async_client=client)
            return cast(list[list[float]], await embeddings.aembed_documents(TEXTS))

    assert is_close(asyncio.run(embed()), embedder.embed(TEXTS))


def test_openai_embeddings_of_a_chosen_size(openai_embeddings: Any) -> None:
    embeddings = openai_embeddings(check_embedding_ctx_length=False, dimensions=32)

    assert [len(vector) for vector in embeddings.embed_documents(TEXTS)] == [32, 32, 32]


def test_openai_embeddings_send_texts_in_groups(embedder: RunningServer, openai_embeddings: Any) -> None:
    embeddings = openai_embeddings(check_embedding_ctx_length=False, chunk_size=2)

    assert is_close(embeddings.embed_documents(TEXTS), embedder.embed(TEXTS))


@pytest.mark.usefixtures("openai_tokenizer")
@pytest.mark.parametrize("name", ["embedder", "granite"])
def test_openai_embeddings_by_default_get_a_warning(name: str, request: pytest.FixtureRequest) -> None:
    """The ids that they send mean other tokens here."""
    server: RunningServer = request.getfixturevalue(name)
    ids = tiktoken.get_encoding("cl100k_base").encode("a big house")
    with WarnedClient() as client:
        embeddings = make_openai_embeddings(server, client)

        vector = embeddings.embed_query("a big house")

    assert is_close(vector, server.embed([{"prompt_token_ids": ids}])[0])
    assert cosine(vector, server.embed(["a big house"])[0]) < 0.7
    assert ["check_embedding_ctx_length=False" in warning for warning in client.warnings] == [True]


@pytest.mark.usefixtures("openai_tokenizer")
def test_openai_embeddings_by_default_name_their_setting_if_an_id_is_too_large(openai_embeddings: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="ids go from 0 to 30521.*check_embedding_ctx_length=False"):
        openai_embeddings().embed_query("snow ☃ and a cenote")


def test_texts_of_openai_embeddings_get_no_warning(embedder: RunningServer) -> None:
    with WarnedClient() as client:
        make_openai_embeddings(embedder, client, check_embedding_ctx_length=False).embed_documents(TEXTS)

    assert client.warnings == [""]


@pytest.mark.parametrize("name", ["embedder", "granite"])
def test_openai_embeddings_by_default_can_be_refused(
    name: str, openai_tokenizer: Path, request: pytest.FixtureRequest
) -> None:
    server: RunningServer = request.getfixturevalue(name)
    with make_client(server.llm, token_ids="refuse") as client, pytest.raises(openai.BadRequestError) as error:
        make_openai_embeddings(server, client).embed_query("a big house")

    assert "check_embedding_ctx_length=False" in error.value.body["message"]  # type: ignore[index]


@pytest.mark.parametrize("name", ["embedder", "granite"])
def test_openai_embeddings_by_default_are_right_with_the_file_of_their_tokenizer(
    name: str, openai_tokenizer: Path, request: pytest.FixtureRequest
) -> None:
    server: RunningServer = request.getfixturevalue(name)
    texts = [*TEXTS, "snow ☃ and a cenote"]
    with make_client(server.llm, token_ids="decode", tiktoken_file=str(openai_tokenizer)) as client:
        embeddings = make_openai_embeddings(server, client)

        assert is_close(embeddings.embed_documents(texts), server.embed(texts))


def test_cohere_embeddings_use_the_prompts_of_the_model(protected_server: RunningServer) -> None:
    embeddings = CohereEmbeddings(model="tiny", base_url=protected_server.url, cohere_api_key=KEY)  # type: ignore[call-arg,arg-type]

    async def embed_query() -> list[float]:
        async with embeddings.async_client:
            return await embeddings.aembed_query(QUERY)

    with embeddings.client:
        documents, query = embeddings.embed_documents(TEXTS), embeddings.embed_query(QUERY)
    assert is_close(documents, protected_server.embed(TEXTS, prompt=PROMPTS["document"]))
    assert is_close(query, protected_server.embed([QUERY], prompt=PROMPTS["query"])[0])
    assert is_close(asyncio.run(embed_query()), query)


def test_cohere_rerank_leaves_limits_null(reranker: RunningServer) -> None:
    rerank = CohereRerank(model="pairs", base_url=reranker.url, cohere_api_key=SecretStr("sk-fake-key"))

    with rerank.client:
        default = rerank.rerank(DOCUMENTS, QUERY)
        unlimited = rerank.rerank(DOCUMENTS, QUERY, top_n=None)

    scores = reranker.score(QUERY, DOCUMENTS)
    order = sorted(range(4), key=lambda index: -scores[index])
    assert [result["index"] for result in unlimited] == order
    assert [result["index"] for result in default] == order[:3]  # langchain's default top_n
    assert is_close([result["relevance_score"] for result in unlimited], sorted(scores, reverse=True))


def test_cohere_rerank_compresses_documents(cross_encoder: RunningServer) -> None:
    rerank = CohereRerank(
        model=cross_encoder.model, base_url=cross_encoder.url, cohere_api_key=SecretStr("sk-fake-key"), top_n=1
    )
    texts = ["Berlin is well known for its museums.", "Berlin had a population of 3,520,031 in 2020."]
    documents = [Document(text, metadata={"index": index}) for index, text in enumerate(texts)]

    with rerank.client:
        (result,) = rerank.compress_documents(documents, "How many people live in Berlin?")

    assert result.metadata["index"] == 1
    expected = cross_encoder.score("How many people live in Berlin?", texts)[1]
    assert result.metadata["relevance_score"] == pytest.approx(expected, abs=1e-4)

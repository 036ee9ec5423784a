"""google-genai: embed_content and count_tokens of the Gemini API."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from google import genai
from google.genai.errors import ClientError
from google.genai.types import EmbedContentConfig, HttpOptions

from tests.clients.conftest import KEY, PROMPTS, TEXTS, RunningServer, is_close

# a warning of aiohttp about the client's session
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")


def connect(server: RunningServer, key: str = "fake-key") -> genai.Client:
    return genai.Client(api_key=key, http_options=HttpOptions(base_url=server.url))


def read_vectors(reply: Any) -> list[list[float]]:
    return [item.values for item in reply.embeddings]


def test_one_text_and_several_are_embedded(embedder: RunningServer) -> None:
    texts: Any = TEXTS
    with connect(embedder) as client:
        several = client.models.embed_content(model="mini", contents=texts)
        one = client.models.embed_content(model="mini", contents=TEXTS[0])

    assert is_close(read_vectors(several), embedder.embed(TEXTS))
    assert is_close(read_vectors(one), embedder.embed(TEXTS[:1]))


def test_the_output_dimensionality_is_honoured(embedder: RunningServer) -> None:
    config = EmbedContentConfig(output_dimensionality=64)
    with connect(embedder) as client:
        reply = client.models.embed_content(model="mini", contents=TEXTS[0], config=config)

    truncated = embedder.embed(TEXTS[:1])[:, :64]
    assert is_close(read_vectors(reply), truncated / np.linalg.norm(truncated))


@pytest.mark.parametrize(("task_type", "role"), [("RETRIEVAL_QUERY", "query"), ("RETRIEVAL_DOCUMENT", "document")])
def test_the_task_type_selects_the_prompt(protected_server: RunningServer, task_type: str, role: str) -> None:
    config = EmbedContentConfig(task_type=task_type)
    texts: Any = TEXTS

    async def embed() -> Any:
        async with connect(protected_server, KEY).aio as client:
            return await client.models.embed_content(model="tiny", contents=texts, config=config)

    assert is_close(read_vectors(asyncio.run(embed())), protected_server.embed(TEXTS, prompt=PROMPTS[role]))


def test_tokens_are_counted(embedder: RunningServer) -> None:
    with connect(embedder) as client:
        reply = client.models.count_tokens(model="mini", contents=TEXTS[0])

    assert reply.total_tokens == embedder.num_tokens(TEXTS[:1])


def test_errors_have_the_status_of_google(embedder: RunningServer, protected_server: RunningServer) -> None:
    with connect(embedder) as client, pytest.raises(ClientError) as unknown:
        client.models.embed_content(model="another", contents=TEXTS[0])
    with connect(protected_server, "wrong") as client, pytest.raises(ClientError) as refused:
        client.models.embed_content(model="tiny", contents=TEXTS[0])

    assert (unknown.value.code, unknown.value.status) == (404, "NOT_FOUND")
    assert (refused.value.code, refused.value.status) == (401, "UNAUTHENTICATED")

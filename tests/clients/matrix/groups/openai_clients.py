"""openai: embeddings in both encodings, token ids, models, moderations; Azure's paths and header."""

from __future__ import annotations

import asyncio
from typing import Any

from checks import ALL, CLASSIFIER, KEY, MODEL, TEXTS, check, classify, embed, equal, post, run_checks, same
from openai import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI

client = OpenAI(base_url=f"{ALL}/v1", api_key=KEY)
azure_options: Any = {"api_version": "2024-10-21", "api_key": KEY}


def read_vectors(reply: Any) -> list[list[float]]:
    return [item.embedding for item in reply.data]


@check("openai: embeddings", "openai")
def embeddings() -> None:
    same(read_vectors(client.embeddings.create(model=MODEL, input=TEXTS)), embed())  # base64, the client's default
    same(read_vectors(client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")), embed())
    reply = client.embeddings.create(model=MODEL, input=TEXTS, dimensions=64)
    same(read_vectors(reply), embed(dimensions=64))
    equal(reply.usage.prompt_tokens, post(ALL, "/v1/embeddings", {"input": TEXTS})["usage"]["prompt_tokens"])


@check("openai: async, 50 at once; raw and streamed responses", "openai")
async def asynchronous() -> None:
    async with AsyncOpenAI(base_url=f"{ALL}/v1", api_key=KEY) as async_client:
        calls = [async_client.embeddings.create(model=MODEL, input=TEXTS) for _ in range(50)]
        expected = embed()
        for reply in await asyncio.gather(*calls):
            same(read_vectors(reply), expected)
    raw = client.embeddings.with_raw_response.create(model=MODEL, input=TEXTS)
    same(read_vectors(raw.parse()), embed())
    with client.embeddings.with_streaming_response.create(model=MODEL, input=TEXTS) as streamed:
        same(read_vectors(streamed.parse()), embed())


@check("openai: token ids, extra_body, base URL without /v1", "openai")
def other_forms() -> None:
    ids = [post(ALL, "/tokenize", {"model": MODEL, "prompt": text})["tokens"] for text in TEXTS]
    same(read_vectors(client.embeddings.create(model=MODEL, input=ids)), embed())
    reply = client.embeddings.create(model=MODEL, input=["deep water " * 300], extra_body={"truncate_prompt_tokens": 5})
    equal(reply.usage.prompt_tokens, 5)
    with OpenAI(base_url=ALL, api_key=KEY) as plain:
        same(read_vectors(plain.embeddings.create(model=MODEL, input=TEXTS)), embed())


@check("openai: models", "openai")
def models() -> None:
    names = [model.id for model in client.models.list()]
    equal(set(names) >= {MODEL, CLASSIFIER}, True)
    equal(client.models.retrieve(MODEL).id, MODEL)


@check("openai: moderations", "openai")
def moderations() -> None:
    reply = client.moderations.create(model=CLASSIFIER, input=TEXTS)
    scores = [result.category_scores.model_dump(by_alias=True) for result in reply.results]
    same([[row["good"], row["bad"]] for row in scores], [[row["good"], row["bad"]] for row in classify()])


@check("AzureOpenAI (azure_endpoint, base_url, async)", "openai")
async def azure() -> None:
    with AzureOpenAI(azure_endpoint=ALL, **azure_options) as endpoint:
        same(read_vectors(endpoint.embeddings.create(model=MODEL, input=TEXTS)), embed())
    with AzureOpenAI(azure_endpoint=ALL, azure_deployment=MODEL, **azure_options) as deployment:
        same(read_vectors(deployment.embeddings.create(model=MODEL, input=TEXTS)), embed())
    with AzureOpenAI(base_url=f"{ALL}/openai", **azure_options) as based:
        same(read_vectors(based.embeddings.create(model=MODEL, input=TEXTS)), embed())
    async with AsyncAzureOpenAI(azure_endpoint=ALL, **azure_options) as async_client:
        same(read_vectors(await async_client.embeddings.create(model=MODEL, input=TEXTS)), embed())


if __name__ == "__main__":
    run_checks()

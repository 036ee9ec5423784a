"""openai: every form of input, both encodings, and errors as exceptions of the client."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from tests.api.image_helpers import CAT, DOG, image_part, make_message, text_part
from tests.clients.conftest import KEY, RunningServer, is_close
from tests.models.tiny_qwen3_vl import IMAGE

TEXTS = ["Hello my name is", "a cenote is a natural pit", "☃ in the snow", "how deep is it?"]


@pytest.fixture
def client(embedder: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="EMPTY") as client:
        yield client


@pytest.fixture
def client_with_key(protected_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{protected_server.url}/v1", api_key=KEY) as client:
        yield client


def vectors(reply: CreateEmbeddingResponse) -> list[list[float]]:
    return [item.embedding for item in reply.data]


def test_one_text_is_one_vector_with_its_tokens_counted(client: openai.OpenAI, embedder: RunningServer) -> None:
    reply = client.embeddings.create(model="mini", input=TEXTS[0])

    assert is_close(vectors(reply), embedder.embed(TEXTS[:1]))
    assert (reply.object, reply.model, reply.data[0].object) == ("list", "mini", "embedding")
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == embedder.num_tokens(TEXTS[:1])


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_several_texts_keep_their_order_in_every_encoding(
    client: openai.OpenAI, embedder: RunningServer, encoding: Any
) -> None:
    options = {} if encoding is None else {"encoding_format": encoding}  # by default, the client requests base64
    reply = client.embeddings.create(model="mini", input=TEXTS, **options)

    embeddings = vectors(reply)
    if encoding == "base64":  # the client decodes only what it requested itself
        embeddings = [np.frombuffer(b64decode(text), dtype="<f4") for text in embeddings]  # type: ignore[arg-type,misc]
    assert is_close(embeddings, embedder.embed(TEXTS))
    assert [item.index for item in reply.data] == [0, 1, 2, 3]
    assert reply.usage.prompt_tokens == embedder.num_tokens(TEXTS)


def test_token_ids_are_not_tokenized_again(client: openai.OpenAI, embedder: RunningServer) -> None:
    ids = [embedder.ids(text) for text in TEXTS]

    one = client.embeddings.create(model="mini", input=ids[1])
    several = client.embeddings.create(model="mini", input=ids)

    expected = embedder.embed(TEXTS)
    assert is_close(vectors(one), expected[1:2])
    assert is_close(vectors(several), expected)
    assert several.usage.prompt_tokens == sum(map(len, ids))


def test_dimensions_truncate_and_renormalize_embeddings(client: openai.OpenAI, embedder: RunningServer) -> None:
    reply = client.embeddings.create(model="mini", input=TEXTS, dimensions=32)

    truncated = embedder.embed(TEXTS)[:, :32]
    assert is_close(vectors(reply), truncated / np.linalg.norm(truncated, axis=1, keepdims=True))


def test_a_model_without_matryoshka_refuses_dimensions_with_the_message_of_vllm(client_with_key: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client_with_key.embeddings.create(model="tiny", input="a", dimensions=8)

    message = (
        'Model "tiny" does not support matryoshka representation, changing output dimensions will lead to poor results.'
    )
    error = refused.value
    assert (error.status_code, error.code, error.type, error.param) == (400, 400, "BadRequestError", None)
    assert isinstance(error.body, dict) and error.body["message"] == message
    expected = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    assert error.response.json().items() >= expected.items()


def test_dimensions_equal_to_the_size_of_the_model_are_accepted(
    client_with_key: openai.OpenAI, protected_server: RunningServer
) -> None:
    reply = client_with_key.embeddings.create(
        input=["Hello my name is", "The best thing"], model="tiny", dimensions=32, extra_body={"normalize": True}
    )

    assert is_close(vectors(reply), protected_server.embed(["Hello my name is", "The best thing"]))


def test_extra_fields_are_sent_in_the_extra_body(client: openai.OpenAI, embedder: RunningServer) -> None:
    long = "deep water " * 300
    with pytest.raises(openai.BadRequestError, match="602"):
        client.embeddings.create(model="mini", input=long)

    raw = client.embeddings.with_raw_response.create(
        model="mini", input=long, user="somebody", extra_body={"truncate_prompt_tokens": 5}
    )

    reply = raw.parse()
    assert is_close(vectors(reply), embedder.embed(["deep water deep"]))
    assert reply.usage.prompt_tokens == 5
    assert raw.headers["x-truncated-inputs"] == "1"


def test_normalize_false_returns_raw_embeddings(client: openai.OpenAI, embedder: RunningServer) -> None:
    reply = client.embeddings.create(model="mini", input=TEXTS, extra_body={"normalize": False})

    assert np.linalg.norm(vectors(reply), axis=1).min() > 1.5
    lengths = np.linalg.norm(vectors(reply), axis=1, keepdims=True)
    assert is_close(np.array(vectors(reply)) / lengths, embedder.embed(TEXTS))


def test_a_conversation_is_embedded_through_the_chat_template(
    client_with_key: openai.OpenAI, protected_server: RunningServer
) -> None:
    messages = [{"role": "user", "content": "where is the river?"}, {"role": "assistant", "content": "in the city"}]

    reply = client_with_key.post(
        "/embeddings",
        cast_to=CreateEmbeddingResponse,
        body={"model": "tiny", "messages": messages, "encoding_format": "float"},
    )

    text = "user: where is the river?.assistant: in the city."
    assert is_close(vectors(reply), protected_server.embed([text]))
    assert reply.usage.prompt_tokens == protected_server.num_tokens([text])


def test_a_text_of_a_quarter_million_tokens_is_embedded_in_chunks(
    client_with_key: openai.OpenAI, protected_server: RunningServer
) -> None:
    text = "Very long text that exceeds the model's position embeddings..." * 5000

    reply = client_with_key.embeddings.create(input=text, model="tiny")

    assert len(reply.data[0].embedding) == 32
    assert reply.usage.prompt_tokens == protected_server.num_tokens([text])
    assert is_close(vectors(reply), protected_server.embed([text]))


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.embeddings.create(model="text-embedding-3-small", input="a")

    assert (refused.value.code, refused.value.type) == (404, "NotFoundError")
    assert "The model `text-embedding-3-small` does not exist." in str(refused.value)


@pytest.mark.parametrize("key", ["wrong", "your-api-ke", KEY + "x"])
def test_a_wrong_key_is_refused(protected_server: RunningServer, key: str) -> None:
    with openai.OpenAI(base_url=f"{protected_server.url}/v1", api_key=key) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            client.embeddings.create(model="tiny", input="a")
        with pytest.raises(openai.AuthenticationError):
            client.models.list()

    assert refused.value.code == 401


def test_models_are_listed_and_retrieved_by_name(client: openai.OpenAI) -> None:
    models = client.models.list()

    assert [model.id for model in models] == ["mini"]
    model = client.models.retrieve("mini")
    assert (model.id, model.object) == ("mini", "model") and model.created > 0 and model.owned_by
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_an_invalid_input_is_named_in_the_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="mini", input=[[101, 30_522]])

    assert "30522" in str(refused.value)
    with pytest.raises(openai.BadRequestError, match="at least one prompt"):
        client.embeddings.create(model="mini", input=[])


def test_the_request_id_of_the_client_is_returned(client: openai.OpenAI) -> None:
    reply = client.embeddings.create(model="mini", input="a", extra_headers={"x-request-id": "my-1"})

    assert reply._request_id == "my-1"


def test_concurrent_async_calls_get_their_own_results(embedder: RunningServer) -> None:
    async def embed_concurrently() -> list[CreateEmbeddingResponse]:
        async with openai.AsyncOpenAI(base_url=f"{embedder.url}/v1", api_key="EMPTY") as client:
            return await asyncio.gather(*(client.embeddings.create(model="mini", input=text) for text in TEXTS * 4))

    replies = asyncio.run(embed_concurrently())

    assert is_close([vectors(reply)[0] for reply in replies], np.tile(embedder.embed(TEXTS), (4, 1)))


def test_a_real_roberta_returns_its_embeddings(granite: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{granite.url}/v1", api_key="EMPTY") as client:
        reply = client.embeddings.create(model=granite.model, input=TEXTS)

    assert is_close(vectors(reply), granite.embed(TEXTS))
    assert reply.usage.prompt_tokens == granite.num_tokens(TEXTS)


def test_images_in_conversations_are_embedded(multimodal_embedder: RunningServer) -> None:
    one, two = [make_message(image_part(CAT), text_part("the cat"))], [make_message(image_part(DOG))]
    with openai.OpenAI(base_url=f"{multimodal_embedder.url}/v1", api_key="EMPTY") as client:
        conversations: Any = [one, two]
        in_input = client.embeddings.create(model="tiny-vl", input=conversations)
        body = {"messages": one, "model": "tiny-vl", "encoding_format": "float"}
        posted = client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)
        with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.content\[1\]") as refused:
            client.embeddings.create(
                model="tiny-vl", input=[make_message(text_part("a"), image_part("data:image/png;base64,"))]
            )  # type: ignore[list-item]

    prompts = [
        {"prompt": f"<|im_start|>user\n{IMAGE}{text}<|im_end|>\n", "multi_modal_data": {"image": image}}
        for image, text in ((CAT, "the cat"), (DOG, ""))
    ]
    expected = multimodal_embedder.embed(prompts, tokenization_kwargs={"add_special_tokens": False})
    assert is_close(vectors(in_input), expected)
    assert is_close(vectors(posted), expected[:1])
    assert refused.value.param == "messages[0].content[1]"

"""The embeddings route returns the embeddings of LLM.embed, in all encodings."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM, PoolingParams
from cenote.api.dialects.openai import Embedding
from cenote.api.dialects.vllm import PoolingAnswer
from cenote.api.replies import AnswerList
from tests.api.app_client import add_chat_template, assert_refused, decode_base64, load_llm, make_client, post_json
from tests.factories import LLMFactory
from tests.tiny import change_config, tiny_bert

TEXTS = ["Follow the white rabbit.", "a", "How deep is the cave?"]
LONG = "the water in the cave is clear and cold and very deep " * 3
CONVERSATION = [{"role": "system", "content": "not big"}, {"role": "user", "content": "the old city"}]
OTHER = [{"role": "user", "content": "a red bird"}]


@pytest.fixture(scope="module")
def chat_llm(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    """Matryoshka model of sizes 4, 8 and 32, with a chat template and a named prompt."""
    folder = tmp_path_factory.mktemp("chat")
    tiny_bert(folder)
    change_config(folder, matryoshka_dimensions=[4, 8, 32])
    add_chat_template(folder)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"ask": "query: "}}))
    return open_llm(folder)


@pytest.fixture(scope="module")
def chat_client(chat_llm: LLM) -> TestClient:
    return make_client(chat_llm)


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
@pytest.mark.parametrize("counts", [True, None])
@pytest.mark.parametrize("path, entry", [("/v1/embeddings", Embedding), ("/pooling", PoolingAnswer)])
def test_responses_equal_what_msgspec_encodes_for_their_type(
    path: str, entry: type[msgspec.Struct], counts: bool | None, encoding_format: str, client: TestClient
) -> None:
    body = {"input": TEXTS, "encoding_format": encoding_format, "return_token_counts": counts, "task": "embed"}

    reply = client.post(path, json=body)

    typed = msgspec.json.decode(reply.content, type=AnswerList[entry], strict=True)  # type: ignore[valid-type]
    assert len(typed.data) == len(TEXTS)
    if encoding_format == "base64":  # floats are written shorter than msgspec does
        assert msgspec.json.encode(typed) == reply.content
    assert (b'"token_counts":{' in reply.content) == bool(counts)


def embeddings(client: TestClient, **body: Any) -> np.ndarray[Any, Any]:
    data = post_json(client, "/v1/embeddings", **body)["data"]
    return np.array([item["embedding"] for item in data], dtype=np.float32)


def expected(llm: LLM, prompts: Any, **options: Any) -> np.ndarray[Any, Any]:
    return np.array([output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False, **options)])


def ids(client: TestClient, text: str) -> list[int]:
    tokens: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return tokens


# inputs


def test_texts_and_token_ids_give_the_embeddings_of_llm_embed(client: TestClient, llm: LLM) -> None:
    tokens = [ids(client, text) for text in TEXTS]
    ours = expected(llm, TEXTS)

    for prompts in (TEXTS, tokens):
        np.testing.assert_allclose(embeddings(client, input=prompts), ours, atol=1e-6)
    for prompt in (TEXTS[0], tokens[0], TEXTS[:1], tokens[:1]):
        np.testing.assert_allclose(embeddings(client, input=prompt), ours[:1], atol=1e-6)


def test_both_paths_return_the_same(client: TestClient) -> None:
    first, second = (client.post(path, json={"input": TEXTS}).json() for path in ("/v1/embeddings", "/embeddings"))

    assert first["data"] == second["data"]


def test_a_response_has_the_fields_of_openai(client: TestClient) -> None:
    before = int(time.time())
    reply = client.post("/v1/embeddings", json={"input": TEXTS, "model": "mini"}, headers={"x-request-id": "r-7"})

    body = reply.json()
    num_tokens = sum(len(ids(client, text)) for text in TEXTS)
    assert body["id"] == "embd-r-7" and reply.headers["x-request-id"] == "r-7"
    assert (body["object"], body["model"]) == ("list", "mini")
    assert before <= body["created"] <= time.time()
    assert [item.keys() for item in body["data"]] == [{"index", "object", "embedding"}] * 3
    assert [(item["index"], item["object"]) for item in body["data"]] == [(i, "embedding") for i in range(3)]
    assert body["usage"] == {
        "prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0,
        "prompt_tokens_details": None, "completion_tokens_details": None,
    }  # fmt: skip
    assert reply.headers["x-prompt-tokens"] == str(num_tokens)


def test_a_request_without_an_id_gets_one(client: TestClient) -> None:
    reply = client.post("/v1/embeddings", json={"input": "a"})

    assert re.fullmatch(r"embd-[0-9a-f]{32}", reply.json()["id"])
    assert reply.json()["id"] == f"embd-{reply.headers['x-request-id']}"


@pytest.mark.parametrize(
    ("path", "fields", "prefix"),
    [
        ("/v1/embeddings", {"input": "a"}, "embd"),
        ("/pooling", {"input": "a"}, "pooling"),
        ("/score", {"queries": "a", "documents": "b"}, "score"),
        ("/rerank", {"query": "a", "documents": ["b"]}, "score"),
        ("/invocations", {"input": "a"}, "embd"),
    ],
)
def test_the_body_sets_the_request_id_where_no_header_does(
    client: TestClient, path: str, fields: dict[str, Any], prefix: str
) -> None:
    body = fields | {"request_id": "client-request-id"}

    reply = client.post(path, json=body)

    assert (reply.json()["id"], reply.headers["x-request-id"]) == (f"{prefix}-client-request-id", "client-request-id")
    refused = client.post(path, json=body | {"priority": "x"})
    assert refused.status_code == 400
    assert client.post(path, json=body, headers={"x-request-id": "r-1"}).json()["id"] == f"{prefix}-r-1"


@pytest.mark.parametrize("request_id", ["two words", "r\r\nset-cookie: a", "é", "", "x" * 129, None])
def test_a_request_id_that_cannot_be_in_a_header_is_replaced(client: TestClient, request_id: str | None) -> None:
    reply = client.post("/v1/embeddings", json={"input": "a", "request_id": request_id})

    assert re.fullmatch(r"embd-[0-9a-f]{32}", reply.json()["id"])
    assert reply.json()["id"] == f"embd-{reply.headers['x-request-id']}"


def test_a_named_prompt_is_prepended_to_every_text(chat_client: TestClient) -> None:
    named = embeddings(chat_client, input=["red", "blue"], prompt_name="ask")

    np.testing.assert_allclose(named, embeddings(chat_client, input=["query: red", "query: blue"]), atol=1e-6)
    reply = chat_client.post("/v1/embeddings", json={"input": "red", "prompt_name": "tell"})
    assert_refused(reply, "unknown prompt_name 'tell'; available: ask", "prompt_name")


# conversations


def test_a_conversation_is_rendered_by_the_chat_template(chat_client: TestClient, chat_llm: LLM) -> None:
    without_special = {"add_special_tokens": False}
    rendered = "system: not big.user: the old city."

    for body in ({"messages": CONVERSATION}, {"input": CONVERSATION}):
        ours = embeddings(chat_client, **body)
        np.testing.assert_allclose(ours, expected(chat_llm, rendered, tokenization_kwargs=without_special), atol=1e-6)
    ours = embeddings(chat_client, messages=CONVERSATION, add_generation_prompt=True)
    theirs = expected(chat_llm, rendered + "who:", tokenization_kwargs=without_special)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    special = embeddings(chat_client, messages=CONVERSATION, add_special_tokens=True)
    np.testing.assert_allclose(special, expected(chat_llm, rendered), atol=1e-6)


def test_several_conversations_give_one_embedding_each(chat_client: TestClient) -> None:
    one, two = embeddings(chat_client, messages=CONVERSATION), embeddings(chat_client, messages=OTHER)

    for body in ({"messages": [CONVERSATION, OTHER]}, {"input": [CONVERSATION, OTHER]}):
        np.testing.assert_allclose(embeddings(chat_client, **body), np.concatenate([one, two]), atol=1e-6)


def test_the_last_message_can_be_left_open(chat_client: TestClient, chat_llm: LLM) -> None:
    ours = embeddings(chat_client, messages=OTHER, continue_final_message=True)

    theirs = expected(chat_llm, "user: a red bird", tokenization_kwargs={"add_special_tokens": False})
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    reply = chat_client.post(
        "/v1/embeddings", json={"messages": OTHER, "continue_final_message": True, "add_generation_prompt": True}
    )
    assert_refused(
        reply,
        "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        "continue_final_message",
    )


@pytest.mark.parametrize(
    "fields", [{"chat_template": "{{ messages[0].content }}"}, {"chat_template_kwargs": {"chat_template": "x"}}]
)
def test_a_template_in_the_request_needs_a_server_that_trusts_it(
    chat_client: TestClient, chat_llm: LLM, fields: dict[str, Any]
) -> None:
    reply = chat_client.post("/v1/embeddings", json={"messages": OTHER} | fields)
    assert_refused(reply, "--trust-request-chat-template is not set. Refused request", "chat_template")

    if "chat_template" in fields:
        ours = embeddings(make_client(chat_llm, trust_request_chat_template=True), messages=OTHER, **fields)
        theirs = expected(chat_llm, "a red bird", tokenization_kwargs={"add_special_tokens": False})
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


# outputs


def test_base64_decodes_to_the_same_values(client: TestClient) -> None:
    floats = embeddings(client, input=TEXTS)

    reply = client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "base64"}).json()

    packed = np.stack([decode_base64(item["embedding"]) for item in reply["data"]])
    np.testing.assert_allclose(packed, floats, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(packed, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(("dtype", "order", "numpy_dtype"), [("float16", "big", ">f2"), ("float32", "little", "<f4")])
def test_base64_in_another_dtype_and_byte_order(client: TestClient, dtype: str, order: str, numpy_dtype: str) -> None:
    options = {"encoding_format": "base64", "embed_dtype": dtype, "endianness": order}

    reply = client.post("/v1/embeddings", json={"input": TEXTS[0]} | options).json()

    packed = decode_base64(reply["data"][0]["embedding"], numpy_dtype)
    np.testing.assert_allclose(packed, embeddings(client, input=TEXTS[0])[0], atol=1e-3)


def test_bytes_have_a_metadata_header(client: TestClient) -> None:
    body = {"input": TEXTS, "encoding_format": "bytes", "embed_dtype": "float16", "endianness": "little"}
    reply = client.post("/v1/embeddings", json=body, headers={"x-request-id": "r-8"})

    assert reply.headers["content-type"] == "application/octet-stream"
    metadata = json.loads(reply.headers["metadata"])
    num_tokens = int(reply.headers["x-prompt-tokens"])
    assert (metadata["id"], metadata["model"]) == ("embd-r-8", "mini")
    assert metadata["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert metadata["data"][2] == {
        "index": 2, "embed_dtype": "float16", "endianness": "little", "start": 1536, "end": 2304, "shape": [384]
    }  # fmt: skip
    read = [np.frombuffer(reply.content[part["start"] : part["end"]], dtype="<f2") for part in metadata["data"]]
    np.testing.assert_allclose(np.stack(read), embeddings(client, input=TEXTS), atol=1e-3)


def test_bytes_only_has_no_metadata_header(client: TestClient) -> None:
    reply = client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "bytes_only"})

    assert "metadata" not in reply.headers
    read = np.frombuffer(reply.content, dtype=np.float32).reshape(len(TEXTS), -1)
    np.testing.assert_allclose(read, embeddings(client, input=TEXTS), atol=1e-6)


def test_a_metadata_header_over_the_limit_is_refused_before_the_model_runs(client: TestClient) -> None:
    reply = client.post("/v1/embeddings", json={"input": ["a"] * 500, "encoding_format": "bytes"})

    assert_refused(reply, "use bytes_only", "encoding_format")
    assert "inference;dur=0.00" in reply.headers["server-timing"]
    assert client.post("/v1/embeddings", json={"input": ["a"] * 500, "encoding_format": "bytes_only"}).is_success


# parameters


def test_without_activation_embeddings_are_not_normalised(client: TestClient, llm: LLM) -> None:
    theirs = expected(llm, TEXTS, pooling_params=PoolingParams(use_activation=False))

    for name in ("use_activation", "normalize"):
        np.testing.assert_allclose(embeddings(client, input=TEXTS, **{name: False}), theirs, rtol=1e-5, atol=1e-5)
    assert np.abs(np.linalg.norm(theirs, axis=1) - 1).min() > 0.1
    assert embeddings(client, input="a", use_activation=True, normalize=True).shape == (1, 384)


def test_dimensions_truncate_and_renormalise(chat_client: TestClient) -> None:
    full, truncated = embeddings(chat_client, input=TEXTS), embeddings(chat_client, input=TEXTS, dimensions=8)

    part = full[:, :8]
    np.testing.assert_allclose(truncated, part / np.linalg.norm(part, axis=1, keepdims=True), atol=1e-6)
    packed = chat_client.post(
        "/v1/embeddings", json={"input": "a", "dimensions": 4, "encoding_format": "base64"}
    ).json()
    assert len(decode_base64(packed["data"][0]["embedding"])) == 4


def test_unsupported_dimensions_are_refused_with_the_messages_of_vllm(
    client: TestClient, chat_client: TestClient
) -> None:
    assert_refused(
        client.post("/v1/embeddings", json={"input": "a", "dimensions": 32}),
        'Model "mini" does not support matryoshka representation, '
        "changing output dimensions will lead to poor results.",
        None,
    )
    assert_refused(
        chat_client.post("/v1/embeddings", json={"input": "a", "dimensions": 16}),
        'Model "tiny" only supports [4, 8, 32] matryoshka dimensions, '
        "use other output dimensions will lead to poor results.",
        None,
    )
    for invalid in (0, -1, 2**40, "8", 8.5):
        reply = chat_client.post("/v1/embeddings", json={"input": "a", "dimensions": invalid})
        assert_refused(reply, "dimensions: expected int", "body.dimensions")


def test_a_text_is_truncated_and_the_response_reports_it(client: TestClient) -> None:
    tokens = ids(client, LONG)
    body = {"input": [LONG, "a"], "truncate_prompt_tokens": 9, "return_token_counts": True}

    reply = client.post("/v1/embeddings", json=body)

    assert reply.headers["x-truncated-inputs"] == "1"
    assert reply.json()["usage"]["prompt_tokens"] == 9 + 3
    assert [item["token_counts"] for item in reply.json()["data"]] == [
        {"used": 9, "given": len(tokens), "truncated": len(tokens) - 9},
        {"used": 3, "given": 3, "truncated": 0},
    ]
    kept = [*tokens[:8], tokens[-1]]  # truncation keeps the special tokens
    np.testing.assert_allclose(reply.json()["data"][0]["embedding"], embeddings(client, input=kept)[0], atol=1e-6)


def test_padding_to_the_maximum_length_computes_and_counts_padding_tokens(client: TestClient, llm: LLM) -> None:
    expected = llm.embed(TEXTS, tokenization_kwargs={"padding": "max_length"}, use_tqdm=False)
    body = {"input": TEXTS, "padding": "max_length"}

    reply = client.post("/v1/embeddings", json=body)

    assert reply.json()["usage"]["prompt_tokens"] == 256 * len(TEXTS)
    vectors = [item["embedding"] for item in reply.json()["data"]]
    np.testing.assert_allclose(vectors, [output.outputs.embedding for output in expected], atol=1e-6)
    plain = client.post("/v1/embeddings", json=body | {"padding": None}).json()
    assert client.post("/v1/embeddings", json=body | {"padding": "do_not_pad"}).json()["usage"] == plain["usage"]
    scored = client.post("/score", json={"queries": "a", "documents": ["b", "c"], "padding": "max_length"})
    assert scored.json()["usage"]["prompt_tokens"] == 3 * 256


@pytest.mark.parametrize(("chunked", "limit", "length"), [(True, 1000, 256), (True, 100, 100), (False, 100, 100)])
def test_padding_ends_at_the_limit_of_embeddings(tmp_path: Path, chunked: bool, limit: int, length: int) -> None:
    tiny_bert(tmp_path, max_position_embeddings=256)
    config = {"enable_chunked_processing": chunked, "max_embed_len": limit, "pooling_type": "MEAN"}
    with load_llm(tmp_path, pooler_config=config) as llm:
        reply = make_client(llm).post("/v1/embeddings", json={"input": "two", "padding": "max_length"})

    assert reply.json()["usage"]["prompt_tokens"] == length


def test_the_truncation_side_can_be_chosen(client: TestClient) -> None:
    tokens = ids(client, LONG)

    for side, kept in (("left", tokens[-9:]), ("right", tokens[:9])):
        for prompt in (LONG, tokens):
            ours = embeddings(client, input=prompt, truncate_prompt_tokens=9, truncation_side=side)
            np.testing.assert_allclose(ours, embeddings(client, input=kept), atol=1e-6)


def test_minus_one_truncates_to_the_model_maximum(client: TestClient) -> None:
    body = {"input": LONG * 100, "truncate_prompt_tokens": -1, "return_token_counts": True}

    reply = client.post("/v1/embeddings", json=body)

    assert reply.json()["usage"]["prompt_tokens"] == 256
    counts = reply.json()["data"][0]["token_counts"]
    assert counts["used"] == 256 and counts["given"] > 256
    assert counts["truncated"] == counts["given"] - 256


def test_a_text_over_the_maximum_length_is_refused_with_both_lengths(client: TestClient) -> None:
    reply = client.post("/v1/embeddings", json={"input": ["a", "water " * 300]})

    assert_refused(reply, "This model's maximum context length is 256 tokens.", "input_tokens")
    assert "your prompt contains 302 input tokens" in reply.json()["error"]["message"]
    assert reply.json()["error"]["index"] == 1


# errors


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        ({}, "input is required (or messages", "body.input"),
        ({"input": "a", "messages": OTHER}, "input and messages are mutually exclusive", "body.input"),
        ({"input": []}, "You must pass at least one prompt", "input"),
        ({"messages": []}, "You must pass at least one prompt", "messages"),
        ({"input": ["a", []]}, "input.1: expected a string like the first item, got a list", "body.input.1"),
        ({"input": ["a", 7]}, "input.1: expected a string like the first item, got a token id", "body.input.1"),
        ({"input": [7, "a"]}, "input.1: expected a token id like the first item, got a string", "body.input.1"),
        ({"input": [[7], "a"]}, "input.1: expected a list like the first item, got a string", "body.input.1"),
        ({"input": [[7], OTHER, [7, {}]]}, "input.2.1: expected a token id like the first item", "body.input.2.1"),
        ({"input": "a", "encoding_format": "hex"}, "float, base64, bytes, bytes_only", "body.encoding_format"),
        ({"input": "a", "embed_dtype": "int4"}, "float16, bfloat16", "body.embed_dtype"),
        ({"input": "a", "endianness": "middle"}, "expected one of: native, big, little", "body.endianness"),
        ({"input": "a", "truncation_side": "top"}, "expected one of: left, right", "body.truncation_side"),
        ({"input": "a", "padding": "longest"}, "expected one of: max_length, do_not_pad", "body.padding"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "expected int >= -1", "body.truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "prompt cannot be empty", "input"),
        ({"input": "a", "priority": -5}, None, None),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_with_the_field(
    client: TestClient, body: Any, words: str | None, param: str | None
) -> None:
    reply = client.post("/v1/embeddings", json=body)

    if words is None:
        assert reply.status_code == 200, reply.text
    else:
        assert_refused(reply, words, param)
        assert reply.headers["x-should-retry"] == "false"
    assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_the_number_of_inputs_is_limited(llm: LLM) -> None:
    client = make_client(llm, max_request_items=3)

    assert client.post("/v1/embeddings", json={"input": ["a"] * 3}).status_code == 200
    assert client.post("/v1/embeddings", json={"input": [7] * 4}).status_code == 200  # one prompt of token ids
    assert_refused(client.post("/v1/embeddings", json={"input": ["a"] * 4}), "input has 4 items, limit", "input")


def test_every_served_name_is_accepted_and_responses_use_the_first(llm: LLM) -> None:
    client = make_client(llm, served_model_name=("small", "smaller"))

    for name in ("small", "smaller", None):
        assert client.post("/v1/embeddings", json={"input": "a", "model": name}).json()["model"] == "small"
    reply = client.post("/v1/embeddings", json={"input": "a", "model": "large"})
    assert_refused(reply, "The model `large` does not exist.", None, status=404)
    assert reply.json()["error"]["type"] == "NotFoundError"


def test_the_server_timing_header_has_the_stages_of_a_request(client: TestClient) -> None:
    started_at = time.perf_counter()
    reply = client.post("/v1/embeddings", json={"input": TEXTS * 20})
    wall_ms = (time.perf_counter() - started_at) * 1000

    parts = dict(re.findall(r"(\w+);dur=([0-9.]+)", reply.headers["server-timing"]))
    stages = ["parse", "tokenize", "wire", "queue", "pack", "device", "deliver", "encode"]
    assert list(parts) == [*stages, "inference"]
    times = {name: float(value) for name, value in parts.items()}
    assert all(times[name] > 0 for name in (*stages, "inference") if name not in ("wire", "queue"))
    assert times["wire"] == 0  # the engine runs in this process
    assert times["pack"] + times["device"] <= times["inference"] + 0.002  # rounded
    assert sum(times[name] for name in stages) <= wall_ms

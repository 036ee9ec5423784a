"""Tokenize and detokenize routes, for texts of any length."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import assert_refused, make_client, post_json, save_chat_embedder
from tests.factories import LLMFactory

MESSAGES = [{"role": "user", "content": "the old city"}]


@pytest.fixture(scope="module")
def chat_llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(save_chat_embedder)


@pytest.fixture(scope="module")
def chat_client(chat_llm: LLM) -> TestClient:
    return make_client(chat_llm)


def tokenize(client: TestClient, **body: Any) -> list[int]:
    reply = post_json(client, "/tokenize", **body)
    found: list[int] = reply["tokens"]
    assert reply["count"] == len(found)
    return found


def test_tokens_of_a_text_equal_those_of_llm_embed(client: TestClient, llm: LLM) -> None:
    text = "Follow the white rabbit."

    reply = client.post("/tokenize", json={"prompt": text, "model": "mini"}).json()

    (output,) = llm.embed(text, use_tqdm=False)
    assert reply == {
        "count": 7, "max_model_len": 256, "tokens": list(output.prompt_token_ids), "token_strs": None
    }  # fmt: skip
    without_special = tokenize(client, prompt=text, add_special_tokens=False)
    assert without_special == reply["tokens"][1:-1]


def test_token_strings_can_be_requested(client: TestClient) -> None:
    reply = client.post("/tokenize", json={"prompt": "rabbits", "return_token_strs": True}).json()

    assert reply["token_strs"] == ["[CLS]", "rabbits", "[SEP]"]


def test_a_text_may_exceed_the_maximum_length(client: TestClient) -> None:
    assert len(tokenize(client, prompt="water " * 10_000)) == 10_002
    assert tokenize(client, prompt="") == tokenize(client, prompt=" ") == [101, 102]


def test_a_conversation_is_rendered_with_a_generation_prompt(chat_client: TestClient) -> None:
    rendered = "user: the old city."

    options = {"add_special_tokens": False}
    assert tokenize(chat_client, messages=MESSAGES) == tokenize(chat_client, prompt=rendered + "who:", **options)
    assert tokenize(chat_client, messages=MESSAGES, add_generation_prompt=False) == tokenize(
        chat_client, prompt=rendered, **options
    )
    assert tokenize(chat_client, messages=MESSAGES, add_special_tokens=True) == tokenize(
        chat_client, prompt=rendered + "who:"
    )
    assert tokenize(chat_client, messages=MESSAGES, continue_final_message=True) == tokenize(
        chat_client, prompt=rendered[:-1], **options
    )
    reply = chat_client.post(
        "/tokenize", json={"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": True}
    )
    assert_refused(reply, "Cannot set both `continue_final_message`", "continue_final_message")


def test_a_trusted_template_gets_tools_and_kwargs(chat_client: TestClient, chat_llm: LLM) -> None:
    template = "{{ messages[0].content }} {{ tools[0].name }} {{ size }}"
    body = {
        "messages": MESSAGES,
        "chat_template": template,
        "tools": [{"name": "search"}],
        "chat_template_kwargs": {"size": "big"},
    }

    ours = tokenize(make_client(chat_llm, trust_request_chat_template=True), **body)

    assert ours == tokenize(chat_client, prompt="the old city search big", add_special_tokens=False)
    assert_refused(
        chat_client.post("/tokenize", json=body), "Refused request with untrusted chat template.", "chat_template"
    )


def test_detokenize_returns_the_text(client: TestClient) -> None:
    ids = tokenize(client, prompt="Follow the white rabbit.")

    reply = client.post("/detokenize", json={"tokens": ids, "model": "mini"})

    assert reply.json() == {"prompt": "[CLS] follow the white rabbit. [SEP]"}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [7]})])
def test_an_unknown_model_is_not_found(client: TestClient, path: str, body: dict[str, Any]) -> None:
    assert_refused(client.post(path, json=body | {"model": "x"}), "The model `x` does not exist.", "model", status=404)


def test_a_request_with_more_tokens_than_the_limit_is_refused(llm: LLM) -> None:
    client = make_client(llm, max_tokenize_tokens=10)
    limit = "exceeds max_tokenize_tokens 10"

    assert_refused(client.post("/tokenize", json={"prompt": "," * 9}), f"Input length 11 {limit}", "input_tokens")
    assert_refused(client.post("/tokenize", json={"prompt": " " * 161}), "161 characters, limit 160", "input_text")
    assert_refused(client.post("/v1/tokenize", json={"text": "," * 11, "model": "mini"}), limit, "input_tokens")
    assert_refused(client.post("/detokenize", json={"tokens": [7] * 11}), "11 tokens or more, limit 10", "input_tokens")
    assert len(tokenize(client, prompt="," * 8)) == 10


def test_the_tokens_of_all_texts_of_a_request_are_limited(llm: LLM) -> None:
    client = make_client(llm, max_tokenize_tokens=10)

    reply = client.post("/tokenize", json={"inputs": [",,,"] * 3})
    assert (reply.status_code, "15 tokens or more, limit 10" in reply.json()["error"]) == (422, True)
    assert client.post("/decode", json={"ids": [[7] * 6] * 2}).status_code == 422
    assert client.post("/tokenize", json={"inputs": [",,,"] * 2}).status_code == 200


def test_the_answer_of_a_text_is_held_before_it_is_tokenized(llm: LLM) -> None:
    client = make_client(llm, max_inflight_bytes=1_000_000)

    reply = client.post("/tokenize", json={"prompt": "," * 100_000, "return_token_strs": True})

    assert_refused(reply, "would take about 401", None, status=413)
    assert client.post("/tokenize", json={"prompt": "," * 1000, "return_token_strs": True}).status_code == 200

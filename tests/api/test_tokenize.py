"""Token ids of prompts, and prompts of token ids, whatever their length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects.tokenize import DetokenizeBody, TokenizeBody
from tests.api.app_client import add_chat_template, assert_refused, load_llm, make_client, null_fields
from tests.tiny import tiny_bert

MESSAGES = [{"role": "user", "content": "the old city"}]


@pytest.fixture(scope="module")
def client(llm: LLM) -> TestClient:
    return make_client(llm)


@pytest.fixture(scope="module")
def chat_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("chat")
    tiny_bert(folder)
    add_chat_template(folder)
    with load_llm(folder) as llm:
        yield llm


@pytest.fixture(scope="module")
def chat(chat_llm: LLM) -> TestClient:
    return make_client(chat_llm)


def tokens(client: TestClient, **body: Any) -> list[int]:
    reply = client.post("/tokenize", json=body)
    assert reply.status_code == 200, reply.text
    found: list[int] = reply.json()["tokens"]
    assert reply.json()["count"] == len(found)
    return found


def test_a_text_becomes_the_tokens_that_the_model_reads(client: TestClient, llm: LLM) -> None:
    text = "Follow the white rabbit."

    reply = client.post("/tokenize", json={"prompt": text, "model": "mini"}).json()

    (output,) = llm.embed(text, use_tqdm=False)
    assert reply == {
        "count": 7, "max_model_len": 256, "tokens": list(output.prompt_token_ids), "token_strs": None
    }  # fmt: skip
    bare = tokens(client, prompt=text, add_special_tokens=False)
    assert bare == reply["tokens"][1:-1]


def test_the_tokens_can_be_read(client: TestClient) -> None:
    reply = client.post("/tokenize", json={"prompt": "rabbits", "return_token_strs": True}).json()

    assert reply["token_strs"] == ["[CLS]", "rabbits", "[SEP]"]


def test_a_text_may_be_longer_than_the_model_reads(client: TestClient) -> None:
    assert len(tokens(client, prompt="water " * 10_000)) == 10_002
    assert tokens(client, prompt="") == tokens(client, prompt=" ") == [101, 102]


def test_a_conversation_is_written_by_its_template_with_the_answers_turn_open(chat: TestClient) -> None:
    written = "user: the old city."

    bare = {"add_special_tokens": False}
    assert tokens(chat, messages=MESSAGES) == tokens(chat, prompt=written + "who:", **bare)
    assert tokens(chat, messages=MESSAGES, add_generation_prompt=False) == tokens(chat, prompt=written, **bare)
    assert tokens(chat, messages=MESSAGES, add_special_tokens=True) == tokens(chat, prompt=written + "who:")
    assert tokens(chat, messages=MESSAGES, continue_final_message=True) == tokens(chat, prompt=written[:-1], **bare)
    reply = chat.post(
        "/tokenize", json={"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": True}
    )
    assert_refused(reply, "Cannot set both `continue_final_message`", "continue_final_message")


def test_a_trusted_template_sees_tools_and_arguments(chat: TestClient, chat_llm: LLM) -> None:
    template = "{{ messages[0].content }} {{ tools[0].name }} {{ size }}"
    body = {
        "messages": MESSAGES,
        "chat_template": template,
        "tools": [{"name": "search"}],
        "chat_template_kwargs": {"size": "big"},
    }

    ours = tokens(make_client(chat_llm, trust_request_chat_template=True), **body)

    assert ours == tokens(chat, prompt="the old city search big", add_special_tokens=False)
    assert_refused(chat.post("/tokenize", json=body), "Refused request with untrusted chat template.", "chat_template")


def test_every_other_field_may_be_null(chat: TestClient) -> None:
    assert tokens(chat, **null_fields(TokenizeBody) | {"prompt": "a", "x": 1}) == tokens(chat, prompt="a")
    assert tokens(chat, **null_fields(TokenizeBody) | {"messages": MESSAGES}) == tokens(chat, messages=MESSAGES)
    reply = chat.post("/detokenize", json=null_fields(DetokenizeBody) | {"tokens": [7], "x": 1})
    assert reply.json() == {"prompt": "the"}


def test_token_ids_become_a_text_again(client: TestClient) -> None:
    ids = tokens(client, prompt="Follow the white rabbit.")

    reply = client.post("/detokenize", json={"tokens": ids, "model": "mini"})

    assert reply.json() == {"prompt": "[CLS] follow the white rabbit. [SEP]"}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_what_is_wrong_is_named(client: TestClient) -> None:
    for path, body, words, param in (
        ("/tokenize", {}, "prompt is required (or messages", "body.prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt: expected str", "body.prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "give prompt or messages, not both", "body.prompt"),
        ("/tokenize", {"messages": []}, "a conversation has at least one message", "body.messages"),
        ("/tokenize", {"messages": MESSAGES}, "messages need a chat template", "messages"),
        ("/detokenize", {}, "tokens is required", "body.tokens"),
        ("/detokenize", {"tokens": None}, "tokens: expected array", "body.tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0: expected int", "body.tokens.0"),
        ("/detokenize", {"tokens": [7, -1]}, "tokens.1: expected int >= 0", "body.tokens.1"),
        ("/detokenize", {"tokens": [2**63]}, "tokens.0: expected int <=", "body.tokens.0"),
        ("/detokenize", {"tokens": [7, 30_522]}, "Token id 30522 is out of vocabulary", "tokens"),
    ):
        assert_refused(client.post(path, json=body), words, param)


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [7]})])
def test_an_unknown_model_is_not_found(client: TestClient, path: str, body: dict[str, Any]) -> None:
    assert_refused(client.post(path, json=body | {"model": "x"}), "The model `x` does not exist.", "model", status=404)

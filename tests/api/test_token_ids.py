"""Token ids of another tokenizer on OpenAI's embeddings routes: `--token-ids`."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app_state import AppState
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, LoadError
from tests.api.app_client import assert_refused, load_llm, make_client
from tests.real.conftest import model_folder
from tests.tiny import save_tiny

HELLO_WORLD = [15339, 1917]  # in cl100k_base
OWN_IDS = [101, 7592, 2088, 102]  # [CLS] hello world [SEP], in the vocabulary of the default model
ROUTES = ["/v1/embeddings", "/openai/deployments/model/embeddings", "/v1/embedding", "/invocations"]
ADVICE = "send texts instead of ids of another tokenizer (LangChain: check_embedding_ctx_length=False)"


def embed(client: TestClient, body: dict[str, Any], path: str = "/v1/embeddings", **headers: str) -> Any:
    return client.post(path, json=body, headers=headers)


def vector(reply: Any) -> np.ndarray[Any, Any]:
    assert reply.status_code == 200, reply.text
    return np.array(reply.json()["data"][0]["embedding"])


@pytest.fixture
def tiktoken_file(tmp_path: Path) -> Path:
    """A vocabulary of four tokens, of which one is half a character."""
    tokens = {7: b"hello", 8: b" world", 9: "é".encode()[:1], 2_000_000: b" " * 100}
    path = tmp_path / "tiny.tiktoken"
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in tokens.items()))
    return path


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("ids", [HELLO_WORLD, [HELLO_WORLD], [OWN_IDS, HELLO_WORLD], [OWN_IDS[1:]], [[102, 101]]])
def test_ids_without_the_special_tokens_get_a_warning(llm: LLM, path: str, ids: Any) -> None:
    client = make_client(llm, served_model_name=("model",))

    reply = embed(client, {"input": ids}, path)

    assert reply.status_code == 200
    assert reply.headers["warning"] == (
        "299 cenote \"token ids without the special tokens of this model's tokenizer: those of another one, such as "
        f'tiktoken, give wrong vectors; {ADVICE}"'
    )


@pytest.mark.parametrize("policy", ["warn", "refuse"])
@pytest.mark.parametrize("inputs", [OWN_IDS, [OWN_IDS], [OWN_IDS, [101, 102]], "hello world", ["hello world"]])
def test_texts_and_ids_of_the_models_tokenizer_get_none(llm: LLM, policy: str, inputs: Any) -> None:
    reply = embed(make_client(llm, token_ids=policy), {"input": inputs})

    assert "warning" not in reply.headers
    assert np.allclose(vector(reply), vector(embed(make_client(llm), {"input": "hello world"})), atol=1e-6)


def test_other_routes_take_ids_without_a_warning(llm: LLM) -> None:
    client = make_client(llm, token_ids="refuse")

    replies = [
        client.post("/pooling", json={"input": [HELLO_WORLD], "task": "embed"}),
        client.post("/embed", json={"inputs": [HELLO_WORLD]}),
    ]

    assert [reply.status_code for reply in replies] == [200, 200]
    assert not any("warning" in reply.headers for reply in replies)


def test_a_warning_does_not_change_the_vectors(llm: LLM) -> None:
    replies = [embed(make_client(llm, token_ids=policy), {"input": HELLO_WORLD}) for policy in ("warn", "allow")]

    assert ["warning" in reply.headers for reply in replies] == [True, False]
    assert (vector(replies[0]) == vector(replies[1])).all()


def test_each_client_is_logged_once(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    client, body = make_client(llm), {"input": HELLO_WORLD}

    with caplog.at_level(logging.WARNING, "cenote"):
        for agent in ("OpenAI/Python 2.54", "OpenAI/Python 2.54", "curl/8", "OpenAI/Python 2.54"):
            embed(client, body, **{"User-Agent": agent, "X-Request-Id": "r1"})

    assert caplog.messages == [
        f"request r1 from testclient, '{agent}': token ids without the special tokens of this model's tokenizer: those "
        f"of another one, such as tiktoken, give wrong vectors; {ADVICE}"
        for agent in ("OpenAI/Python 2.54", "curl/8")
    ]


def test_the_clients_that_were_logged_are_few(
    llm: LLM, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cenote.api.middleware.MAX_WARNED_CLIENTS", 2)
    client = make_client(llm)

    with caplog.at_level(logging.WARNING, "cenote"):
        for agent in "abcc":
            embed(client, {"input": HELLO_WORLD}, **{"User-Agent": agent})

    assert [message.partition("'")[2][0] for message in caplog.messages] == ["a", "b", "c"]


@pytest.mark.parametrize("path", ROUTES)
def test_ids_are_refused_on_demand(llm: LLM, path: str) -> None:
    client = make_client(llm, served_model_name=("model",), token_ids="refuse")

    reply = embed(client, {"input": [HELLO_WORLD]}, path)

    words = "token ids without the special tokens of this model's tokenizer are refused, as those of another one"
    assert_refused(reply, words, "input")
    assert f"{ADVICE}, or start the server with --token-ids warn" in reply.json()["error"]["message"]


def test_granite_does_not_embed_ids_of_openai_without_a_word() -> None:
    """All of them are in its vocabulary, as other tokens."""
    with load_llm(model_folder("granite-embedding-30m-english")) as llm:
        found = embed(make_client(llm), {"input": [HELLO_WORLD]})
        right = embed(make_client(llm), {"input": "hello world"})
        refused = embed(make_client(llm, token_ids="refuse"), {"input": [HELLO_WORLD]})

    assert vector(found) @ vector(right) < 0.7
    assert "check_embedding_ctx_length=False" in found.headers["warning"] and "warning" not in right.headers
    assert refused.status_code == 400


def test_a_tokenizer_without_special_tokens_has_none_to_tell_its_ids_by(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3Model")
    with load_llm(tmp_path) as llm:
        assert llm.engine.model_info.special_tokens == ((), ())

        assert "warning" in embed(make_client(llm), {"input": [[7, 8]]}).headers


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/embed"])
def test_ids_outside_of_the_vocabulary_name_langchains_setting(llm: LLM, path: str) -> None:
    reply = make_client(llm).post(path, json={"input": [[41133]], "inputs": [[41133]]})

    assert reply.status_code in (400, 422)
    assert f"Token id 41133 is out of vocabulary: ids go from 0 to 30521; {ADVICE}" in reply.text


def test_ids_are_decoded_with_a_file_of_their_tokenizer(llm: LLM, tiktoken_file: Path) -> None:
    client = make_client(llm, token_ids="decode", tiktoken_file=str(tiktoken_file))

    decoded = embed(client, {"input": [[7, 8], [7, 9]]})

    texts = embed(client, {"input": ["hello world", "hello\N{REPLACEMENT CHARACTER}"]})
    assert decoded.json()["data"] == texts.json()["data"]
    assert decoded.json()["usage"] == texts.json()["usage"]
    assert "warning" not in decoded.headers
    assert (vector(embed(client, {"input": OWN_IDS})) == vector(texts)).all()


def test_ids_that_the_file_does_not_have_are_refused(llm: LLM, tiktoken_file: Path) -> None:
    client = make_client(llm, token_ids="decode", tiktoken_file=str(tiktoken_file))

    assert_refused(embed(client, {"input": [7, 10]}), f"Token id 10 is not in tiny.tiktoken; {ADVICE}", "input")


@pytest.mark.parametrize("ids", [[2_000_000] * 7, [[2_000_000] * 4, [2_000_000] * 3]])
def test_decoded_texts_have_the_size_of_a_request(llm: LLM, tiktoken_file: Path, ids: Any) -> None:
    client = make_client(llm, token_ids="decode", tiktoken_file=str(tiktoken_file), max_body_bytes=600)

    assert_refused(embed(client, {"input": ids}), "bytes; split it, or raise --max-body-bytes", "input")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("", "line 0 is not a token in base64 and its id"),
        ("aGVsbG8= 0\n\nd29ybGQ= 1\n", "line 2 is not"),
        ("hello 0\n", "line 1 is not"),
        ("aGVsbG8= x\n", "line 1 is not"),
    ],
)
def test_a_file_that_cannot_be_read_ends_the_start(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "broken.tiktoken"
    if content is not None:
        path.write_text(content)

    with pytest.raises(LoadError, match=f"tiktoken_file {path}: {words}"):
        AppState(ServerConfig(token_ids="decode", tiktoken_file=str(path)))


@pytest.mark.parametrize("options", [{"token_ids": "decode"}, {"tiktoken_file": "a"}])
def test_decoding_and_its_file_need_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="token_ids decode needs tiktoken_file"):
        ServerConfig(**options)

"""Large answers are put together in the parser thread: the event loop answers others meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote.api import app, vector_response

TEXTS = ["the water in the cave", "is", "clear"]


def without_ids(answer: Any) -> Any:
    return answer if isinstance(answer, list) else [answer["object"], answer["data"], answer["usage"]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed_all", {"inputs": TEXTS}),
        ("/pooling", {"input": TEXTS, "task": "token_embed"}),
        ("/pooling", {"input": TEXTS * 50, "task": "embed&token_embed"}),
        ("/v1/embeddings", {"input": TEXTS}),
        ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}),
    ],
)
def test_large_answers_are_joined_in_the_parser_thread(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    run, threads = vector_response.run_in_parser_thread, list[str]()

    def join(pieces: Iterable[bytes]) -> bytes:
        pieces = list(pieces)
        assert {type(piece) for piece in pieces} == {bytes}  # Python would keep the interpreter
        threads.append(threading.current_thread().name)
        return b"".join(pieces)

    monkeypatch.setattr(vector_response, "run_in_parser_thread", lambda function, pieces: run(join, pieces))
    small = client.post(path, json=body)
    assert small.status_code == 200 and not threads

    monkeypatch.setattr(vector_response, "MAX_JOINED_BYTES", 100)
    monkeypatch.setattr(app, "MAX_JOINED_BYTES", 100)
    large = client.post(path, json=body)

    assert without_ids(large.json()) == without_ids(small.json())
    assert large.headers["content-length"] == str(len(large.content))
    assert [name.rpartition("_")[0] for name in threads] == ["cenote-parser"]


def test_large_binary_answers_are_joined_in_the_parser_thread(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, threads = vector_response.make_binary_body, list[str]()

    def record(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return make(*arguments)

    body = {"input": TEXTS, "task": "token_embed", "encoding_format": "bytes_only"}
    small = client.post("/pooling", json=body)
    monkeypatch.setattr(vector_response, "make_binary_body", record)
    monkeypatch.setattr(vector_response, "MAX_JOINED_BYTES", 100)
    large = client.post("/pooling", json=body)

    assert large.content == small.content
    assert [name.rpartition("_")[0] for name in threads] == ["cenote-parser"]

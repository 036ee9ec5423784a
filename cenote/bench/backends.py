"""Request formats and response parsers, one entry per kind of server and route."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

Body = dict[str, Any]
Vectors = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
MAX_ERROR_CHARACTERS = 200
TRUNCATE_FIELDS = {"truncate_prompt_tokens": -1}  # truncate long texts instead of returning an error


@dataclass(frozen=True, slots=True)
class Backend:
    """Request format of one kind of server."""

    path: str
    make_body: Callable[[Sequence[str]], Body]  # builds the body from the texts of one request
    fields: Mapping[str, Any]  # added to every body
    has_encoding: bool = False  # whether the request has an encoding_format field (float or base64)
    has_query: bool = False  # whether the first text is a query and the others are documents
    is_embedding: bool = False

    def num_items(self, texts: Sequence[str]) -> int:
        return len(texts) - self.has_query


def _input_body(texts: Sequence[str]) -> Body:
    return {"input": list(texts)}


def _messages_body(texts: Sequence[str]) -> Body:
    chats = [[{"role": "user", "content": text}] for text in texts]
    return {"messages": chats[0] if len(chats) == 1 else chats}


def _documents_body(texts: Sequence[str]) -> Body:
    return {"query": texts[0], "documents": list(texts[1:])}


def _pairs_body(texts: Sequence[str]) -> Body:
    return {"text_1": texts[0], "text_2": list(texts[1:])}


BACKENDS = {
    "openai-embeddings": Backend("/v1/embeddings", _input_body, TRUNCATE_FIELDS, has_encoding=True, is_embedding=True),
    "openai-embeddings-chat": Backend("/v1/embeddings", _messages_body, TRUNCATE_FIELDS, has_encoding=True),
    "infinity-embeddings": Backend("/embeddings", _input_body, {}, has_encoding=True, is_embedding=True),
    "vllm-pooling": Backend("/pooling", _input_body, TRUNCATE_FIELDS, has_encoding=True),
    "classify": Backend("/classify", _input_body, TRUNCATE_FIELDS),
    "vllm-score": Backend("/score", _pairs_body, TRUNCATE_FIELDS, has_query=True),
    "vllm-rerank": Backend("/rerank", _documents_body, TRUNCATE_FIELDS, has_query=True),
    "cohere-rerank": Backend("/v2/rerank", _documents_body, {}, has_query=True),
}


def encode_request(
    backend: Backend, texts: Sequence[str], *, model: str | None, encoding_format: str, extra: Mapping[str, Any]
) -> bytes:
    """Encode one request as JSON; a null in `extra` removes the field."""
    encoding = {"encoding_format": encoding_format} if backend.has_encoding else {}
    body = {"model": model, **backend.make_body(texts), **backend.fields, **encoding, **extra}
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


class _Item(msgspec.Struct):
    """Result item; only the number of items is used."""


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Reply(msgspec.Struct):
    data: list[_Item] | None = None
    results: list[_Item] | None = None  # from a rerank route
    usage: _Usage | None = None


class _Vector(msgspec.Struct):
    embedding: str | list[float]
    index: int = 0


class _Vectors(msgspec.Struct):
    data: list[_Vector]


_read_reply = msgspec.json.Decoder(_Reply).decode
_read_vectors = msgspec.json.Decoder(_Vectors).decode
_read_error = msgspec.json.Decoder().decode


class InvalidReply(Exception):
    """A response with status 200 and an invalid body."""


def parse_num_tokens(body: bytes, num_items: int) -> int | None:
    """Return the prompt tokens reported by a response; raise InvalidReply if the number of results is wrong."""
    try:
        reply = _read_reply(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidReply(f"cannot decode the response: {error}") from None
    items = reply.data if reply.data is not None else reply.results
    if items is None or len(items) != num_items:
        raise InvalidReply(f"got {0 if items is None else len(items)} results for {num_items} inputs")
    if reply.usage is None:
        return None
    tokens = reply.usage.prompt_tokens
    return reply.usage.total_tokens if tokens is None else tokens


def parse_vectors(body: bytes) -> Vectors:
    """Return the embeddings of a response in input order, shape [inputs, d]."""
    try:
        rows = sorted(_read_vectors(body).data, key=lambda row: row.index)
        return np.stack([_decode_vector(row.embedding) for row in rows])
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InvalidReply(f"cannot decode the vectors: {error}") from None


def _decode_vector(embedding: str | list[float]) -> Vectors:
    if isinstance(embedding, str):
        try:
            return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
        except binascii.Error as error:
            raise ValueError(f"invalid base64: {error}") from None
    return np.asarray(embedding, dtype=np.float32)


def parse_error(body: bytes) -> str:
    """Return the error message of a response, from `error`, `message` or `detail`, shortened."""
    try:
        content = _read_error(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = body.decode(errors="replace")
    for name in ("error", "message", "detail"):
        if isinstance(content, dict) and name in content:
            content = content[name]
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return " ".join(text.split())[:MAX_ERROR_CHARACTERS]

"""The server under examination: its model, its limits, and requests of the table sent to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cenote.doctor.answers import AnswerError, Classes, Scores, Vector
from cenote.doctor.client_request import ClientRequest, RequestInputs
from cenote.doctor.texts import DOCUMENTS, QUERY, TEXTS
from cenote.errors import PoolingError
from cenote.utils.http_client import HttpClient, HttpReply

FALLBACK_MODEL = "default"


@dataclass
class Server:
    client: HttpClient
    inputs: RequestInputs
    max_length: int | None = None  # tokens; None if the server does not say
    is_auto_truncating: bool = False  # said by GET /info of Text Embeddings Inference

    @classmethod
    def connect(cls, client: HttpClient, model: str | None = None) -> Server:
        """Ask for the model and its limits; raises ServerUnreachable if nothing answers."""
        models = client.get("/v1/models")
        if models.status in (401, 403):
            raise PoolingError(f"{client.url} needs an API key ({models.status}); set --api-key")
        listed, info = first_model(models), client.get("/info")
        facts = info.json if info.is_ok and isinstance(info.json, dict) else {}
        name = model or listed.get("id") or facts.get("model_id") or find_ollama_model(client) or FALLBACK_MODEL
        length = listed.get("max_model_len") or facts.get("max_input_length")
        inputs = RequestInputs(str(name), client.api_key, TEXTS, QUERY, DOCUMENTS)
        return cls(client, inputs, length if isinstance(length, int) else None, facts.get("auto_truncate") is True)

    @property
    def model(self) -> str:
        return self.inputs.model

    def send(self, request: ClientRequest, inputs: RequestInputs | None = None, **changes: Any) -> HttpReply:
        """Send a request of the table; `changes` replace fields of its body."""
        inputs = inputs or self.inputs
        path, headers = request.make_path(inputs), request.make_headers(inputs)
        if request.body is None:
            return self.client.send("GET", path)
        return self.client.post(path, {**request.make_body(inputs), **changes}, headers)

    def embed(self, request: ClientRequest, texts: Sequence[str], **changes: Any) -> list[Vector]:
        """Return the vectors of texts; raises AnswerError if the reply has none."""
        if not request.takes_lists and len(texts) > 1:
            return [vector for text in texts for vector in self.embed(request, [text], **changes)]
        reply = self.send(request, replace(self.inputs, texts=texts), **changes)
        vectors: list[Vector] = read_reply(request, reply)
        if len(vectors) != len(texts):
            raise AnswerError(f"{len(texts)} texts, but {len(vectors)} vectors")
        return vectors

    def rank(self, request: ClientRequest, query: str, documents: Sequence[str]) -> Scores:
        reply = self.send(request, replace(self.inputs, query=query, documents=documents))
        scores: Scores = read_reply(request, reply)
        return scores

    def classify(self, request: ClientRequest, texts: Sequence[str]) -> Classes:
        reply = self.send(request, replace(self.inputs, texts=texts))
        classes: Classes = read_reply(request, reply)
        return classes


def read_reply(request: ClientRequest, reply: HttpReply) -> Any:
    """Read a reply as the client does."""
    if not reply.is_ok:
        raise AnswerError(f"status {reply.status}: {reply.excerpt()}")
    if request.is_json:
        media_type = reply.headers.get("content-type", "")
        if "json" not in media_type:
            raise AnswerError(f"header Content-Type is {media_type or 'missing'}, expected application/json")
        if reply.json is None:
            raise AnswerError(f"the reply is not JSON: {reply.excerpt(60)}")
    return request.reader(reply.json)


def first_model(reply: HttpReply) -> dict[str, Any]:
    body = reply.json if reply.is_ok else None
    models = body.get("data") if isinstance(body, dict) else None
    return models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}


def find_ollama_model(client: HttpClient) -> str | None:
    body = client.get("/api/tags").json
    models = body.get("models") if isinstance(body, dict) else None
    return models[0].get("name") if isinstance(models, list) and models and isinstance(models[0], dict) else None

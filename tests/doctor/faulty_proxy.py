"""Proxies with one fault each, in front of a server that has none."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cenote.doctor.recording import ForwardingProxy, ProxyRequest
from cenote.utils.http_client import HttpClient, HttpReply

ChangeRequest = Callable[[dict[str, Any]], None]
ChangeReply = Callable[["FaultyProxy", ProxyRequest, HttpReply], HttpReply]


class FaultyProxy(ForwardingProxy):
    """Forward only some paths; the others do not exist, as at a server with one API."""

    def __init__(
        self,
        url: str,
        *paths: str,
        change_request: ChangeRequest | None = None,
        change_reply: ChangeReply | None = None,
    ) -> None:
        super().__init__(url)
        self.paths = ("/v1/models", *paths)
        self.change_request = change_request
        self.change_reply = change_reply

    def exchange(self, request: ProxyRequest) -> HttpReply:
        if request.path not in self.paths:
            return HttpReply(404, {"content-type": "application/json"}, b'{"error": {"message": "Not Found"}}', 0.0)
        body = parse(request.content)
        if self.change_request is not None and isinstance(body, dict):
            self.change_request(body)
            request = replace(request, content=json.dumps(body).encode())
        reply = self.forward(request)
        is_changed = self.change_reply is not None and request.method == "POST"
        return self.change_reply(self, request, reply) if is_changed and self.change_reply else reply


def parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def with_body(reply: HttpReply, body: Any) -> HttpReply:
    return HttpReply(reply.status, reply.headers, json.dumps(body).encode(), reply.received_at)


def change_vectors(change: Callable[[list[Any]], list[Any]]) -> ChangeReply:
    """Return a fault that changes all embeddings of a reply."""

    def apply(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
        if not reply.is_ok:
            return reply
        body = reply.json
        vectors = change([item["embedding"] for item in body["data"]])
        for item, vector in zip(body["data"], vectors, strict=True):
            item["embedding"] = vector
        return with_body(reply, body)

    return apply


def pool_cls(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
    """Replace each embedding by the normalized vector of the first token."""
    asked = parse(request.content)
    if not reply.is_ok or asked.get("encoding_format") == "base64":
        return reply
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    with HttpClient(proxy.url) as client:
        tokens = client.post("/pooling", {"input": texts, "task": "token_embed"}).json
    body = reply.json
    for item, rows in zip(body["data"], tokens["data"], strict=True):
        first = np.array(rows["data"][0])
        item["embedding"] = (first / np.linalg.norm(first)).tolist()
    return with_body(reply, body)


def scale(vectors: list[Any]) -> list[Any]:
    return [vector if isinstance(vector, str) else [5.5 * value for value in vector] for vector in vectors]


def reverse(vectors: list[Any]) -> list[Any]:
    return vectors[::-1]


def round_base64(vectors: list[Any]) -> list[Any]:
    """Round base64 to float16, and leave JSON numbers as they are."""
    return [round_to_half(vector) if isinstance(vector, str) else vector for vector in vectors]


def round_to_half(text: str) -> str:
    values = np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float16).astype("<f4")
    return base64.b64encode(values.tobytes()).decode()


def swap_scores(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
    """Exchange the documents of the best and the worst score."""
    if not reply.is_ok:
        return reply
    body = reply.json
    results = body["results"]
    results[0]["index"], results[-1]["index"] = results[-1]["index"], results[0]["index"]
    return with_body(reply, body)


def flatten_error(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
    return reply if reply.is_ok else with_body(reply, reply.json["error"])


def drop_warning(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
    return replace(reply, headers={name: value for name, value in reply.headers.items() if name != "warning"})


def drop_content_type(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
    return replace(reply, headers={name: value for name, value in reply.headers.items() if name != "content-type"})


def fail_on_bad_input(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
    return replace(reply, status=500) if reply.status in (400, 422) else reply


def hide_truncation(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
    return replace(reply, headers={name: value for name, value in reply.headers.items() if "truncated" not in name})


def ask_for_truncation(body: dict[str, Any]) -> None:
    body["truncate_prompt_tokens"] = -1


def ignore_dimensions(body: dict[str, Any]) -> None:
    body.pop("dimensions", None)

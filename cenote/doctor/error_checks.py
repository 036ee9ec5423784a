"""Invalid requests: status 4xx, and an error body that the clients of each API can read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cenote.doctor.answers import AnswerError, anything, expect
from cenote.doctor.client_checks import ServedRequests
from cenote.doctor.client_request import ClientRequest, Each
from cenote.doctor.client_requests import CLIENT_REQUESTS
from cenote.doctor.findings import Report
from cenote.doctor.server import Server
from cenote.utils.http_client import HttpReply

UNKNOWN_MODEL = "no-such-model"
INPUT_PLACEHOLDERS = ("$TEXTS", "$TEXT", "$DOCUMENTS")
TOO_MANY_INPUTS = 2049  # OpenAI accepts 2048
# APIs in which a request without inputs is valid: it loads the model
INPUTLESS_APIS = ("Ollama",)


@dataclass(frozen=True)
class InvalidRequest:
    name: str
    path: str
    content: bytes


def error_object(body: Any) -> None:
    """OpenAI: `error` with message, type, param and code; SDKs read the first two."""
    expect(body, dict, "error")
    expect(body, str, "error", "message")
    expect(body, str, "error", "type")


def error_string(body: Any) -> None:
    """Hugging Face, Ollama and Weaviate clients print `error` as it is, or cannot decode an object."""
    expect(body, str, "error")


def google_error(body: Any) -> None:
    expect(body, str, "error", "message")
    expect(body, str, "error", "status")
    expect(body, int, "error", "code")


def text_at(name: str) -> Callable[[Any], None]:
    def check(body: Any) -> None:
        expect(body, str, name)

    return check


ERROR_FORMATS: dict[str, Callable[[Any], None]] = {
    "OpenAI": error_object,
    "Azure OpenAI": error_object,
    "vLLM": error_object,
    "Infinity": error_object,
    "TEI": error_string,
    "Ollama": error_string,
    "Weaviate": error_string,
    "Gemini": google_error,
    "Vertex AI": google_error,
    "Cohere": text_at("message"),
    "Voyage": text_at("detail"),
    "Jina": text_at("detail"),
}


def check_errors(server: Server, served: ServedRequests, report: Report) -> None:
    for api, check_format in ERROR_FORMATS.items():
        request = served.find(api)
        if request is None:
            continue
        problems: list[str] = []
        for invalid in make_invalid_requests(request, server):
            headers = request.make_headers(server.inputs)
            reply = server.client.send("POST", invalid.path, invalid.content, headers)
            problem = find_error_problem(api, invalid.name, reply, check_format)
            if invalid.name == "unknown model" and reply.is_ok:
                report.add(api, "unknown model", "warn", f"{invalid.path} accepts the model {UNKNOWN_MODEL!r}")
            elif problem is not None:
                problems.append(problem)
        report.add_result(api, "errors", "; ".join(problems) or None)
    check_limits(server, served, report)
    check_api_key(server, served, report)


def make_invalid_requests(request: ClientRequest, server: Server) -> Iterator[InvalidRequest]:
    """Change a valid request in one way at a time."""
    body, path = request.make_body(server.inputs), request.make_path(server.inputs)
    valid = json.dumps(body).encode()
    is_owner = owns_path(request)
    if is_owner:
        yield InvalidRequest("broken JSON", path, valid[: len(valid) // 2])
    name = find_input_field(request.body)
    if name is not None:
        yield InvalidRequest("wrong type", path, json.dumps({**body, name: 5}).encode())
        if is_owner:
            yield InvalidRequest("missing field", path, json.dumps(without(body, name)).encode())
        if isinstance(body[name], list):
            yield InvalidRequest("empty list", path, json.dumps({**body, name: []}).encode())
    if request.body.get("model") == "$MODEL" or "{model}" in request.path:
        unknown = {**body, "model": UNKNOWN_MODEL} if "model" in body else body
        new_path = request.path.replace("{model}", UNKNOWN_MODEL)
        yield InvalidRequest("unknown model", new_path, json.dumps(unknown).encode())


def owns_path(request: ClientRequest) -> bool:
    """Whether an error on the path without readable keys belongs to this API: the first of those that share it."""
    return next(row.api for row in CLIENT_REQUESTS if row.path == request.path) == request.api


def find_input_field(body: dict[str, Any]) -> str | None:
    """Return the field with the texts or documents."""
    for name, value in body.items():
        if isinstance(value, Each) or (isinstance(value, str) and value in INPUT_PLACEHOLDERS):
            return name
    return None


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


def find_error_problem(api: str, name: str, reply: HttpReply, check_format: Callable[[Any], None]) -> str | None:
    if reply.is_ok:
        if name == "unknown model" or (api in INPUTLESS_APIS and name in ("missing field", "empty list")):
            return None
        return f"{name}: accepted with {reply.status}"
    if reply.status >= 500:
        return f"{name}: {reply.status} instead of 4xx, which clients retry: {reply.excerpt(80)}"
    if "json" not in reply.headers.get("content-type", ""):
        return f"{name}: header Content-Type is {reply.headers.get('content-type', 'missing')}, expected JSON"
    try:
        check_format(reply.json)
    except AnswerError as error:
        return f"{name}: the error body cannot be read by clients: {error}: {reply.excerpt(80)}"
    return None


def check_limits(server: Server, served: ServedRequests, report: Report) -> None:
    """A request with too many inputs is computed or refused, not a failure of the server."""
    request = served.find("OpenAI", "vectors")
    if request is None:
        return
    reply = server.send(request, input=["a"] * TOO_MANY_INPUTS)
    if reply.status >= 500:
        problem = f"{TOO_MANY_INPUTS} inputs return {reply.status}: {reply.excerpt(80)}"
        report.add("OpenAI", "many inputs", "fail", problem)
    else:
        how = "are computed" if reply.is_ok else f"are refused ({reply.status})"
        report.add("OpenAI", "many inputs", "ok", f"{TOO_MANY_INPUTS} inputs {how}")


def check_api_key(server: Server, served: ServedRequests, report: Report) -> None:
    """With an API key, requests without it are refused with a body that clients can read."""
    requests: Sequence[ClientRequest | None] = (served.vectors, served.scores, served.classes)
    request = next((row for row in requests if row is not None), None)
    if request is None or not server.client.api_key:
        return
    content = json.dumps(request.make_body(server.inputs)).encode()
    headers = {"Content-Type": "application/json"}
    reply = server.client.send("POST", request.make_path(server.inputs), content, headers, with_key=False)
    if reply.status not in (401, 403):
        report.add(request.api, "API key", "warn", f"a request without the key returns {reply.status}")
        return
    problem = find_error_problem(request.api, "no API key", reply, ERROR_FORMATS.get(request.api, anything))
    report.add_result(request.api, "API key", problem)

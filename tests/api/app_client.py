"""Test client of the app with a real engine, in the process of the test."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from starlette.routing import Route
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.config.server import ServerConfig
from tests.tiny import tiny_bert, tiny_cross_encoder

# renders every message as "role: content."; the generation prompt is "who:"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}.{% endfor %}"
    "{% if add_generation_prompt %}who:{% endif %}"
)


def make_client(llm: LLM, **settings: Any) -> TestClient:
    app_state = AppState(ServerConfig(**settings))
    app_state.set_engine(llm.engine)
    return TestClient(build_app(app_state))


def post_json(client: TestClient, path: str, /, **body: Any) -> Any:
    """Return the body of the response, which has to be one of success."""
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def list_served_routes(client: TestClient) -> dict[str, set[str]]:
    """Return the methods of every path that the app serves, as the OpenAPI document writes them."""
    app: Any = client.app
    while not hasattr(app, "routes"):
        app = app.app
    served: dict[str, set[str]] = {}
    for route in app.routes:
        assert isinstance(route, Route) and route.methods is not None
        served.setdefault(route.path.replace(":path}", "}"), set()).update(route.methods)
    return served


def load_llm(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", served_model_name="tiny", **options)


def add_chat_template(folder: Path, template: str = CHAT_TEMPLATE) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))


def save_chat_embedder(folder: Path) -> None:
    tiny_bert(folder)
    add_chat_template(folder)


def save_chat_cross_encoder(folder: Path) -> None:
    tiny_cross_encoder(folder)
    add_chat_template(folder)


def null_fields(body: type[msgspec.Struct]) -> dict[str, None]:
    """Return all optional fields of a body, set to null."""
    return {field.encode_name: None for field in msgspec.structs.fields(body) if not field.required}


def assert_refused(reply: Any, words: str, param: str | None, status: int = 400) -> None:
    """Check that the reply is an error with this text and field, in the formats of all clients."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert words in body["error"]["message"], body["error"]["message"]
    assert body["error"]["param"] == param
    assert body["error"]["code"] == body["code"] == status
    assert body["error"]["message"] == body["message"] == body["detail"]
    assert body["object"] == "error"


def decode_base64(text: str, dtype: str = "<f4") -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype)

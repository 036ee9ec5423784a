"""SageMaker /invocations: one route for all request types, selected by the keys of the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from cenote.api.dialects.dialect import EMBEDDINGS, Dialect, Route, has_keys
from cenote.api.dialects.openai import OPENAI
from cenote.api.dialects.rerank import RERANK
from cenote.api.dialects.text_requests import (
    check_not_empty,
    make_embed_request,
    make_truncation,
)
from cenote.api.dialects.vllm import SCORE_FIELD_PAIRS, VLLM
from cenote.api.plain_route import Routes
from cenote.api.request_body import NULL_JSON, parse_body
from cenote.api.request_context import RequestContext
from cenote.api.vector_response import encode_results
from cenote.errors import InvalidBody
from cenote.protocol.model_info import ModelInfo

routes = Routes(Route)

# alternative sets of required keys by route, in the order in which the routes are tried
REQUIRED_KEYS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "/v1/embeddings": (("input",), ("messages",)),
    "/classify": (("input",), ("messages",)),
    "/rerank": (("query", "documents"),),
    "/score": SCORE_FIELD_PAIRS,
    "/pooling": (("input",), ("messages",), ("data",)),
}
ROUTES = {
    path: route
    for path in REQUIRED_KEYS
    for route in (*OPENAI.routes, *VLLM.routes, *RERANK.routes)
    if path in route.paths
}
# routes for one task: skipped if the body names another task
ROUTE_TASKS = {"/v1/embeddings": "embed", "/classify": "classify"}

KEY_NAMES = sorted({name for choices in REQUIRED_KEYS.values() for names in choices for name in names})
# the keys of a body, of which only the task and the model are parsed
BodyKeys = msgspec.defstruct(
    "Keys", [("task", Any, None), ("model", Any, None), *((name, msgspec.Raw, NULL_JSON) for name in KEY_NAMES)]
)


class JumpStartBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    text_inputs: str | list[str]


class JumpStartEmbeddings(msgspec.Struct):
    embedding: list[list[float]]  # one for each text


@routes.add(
    "/invocations",
    reply_type=JumpStartEmbeddings,
    body_keys=has_keys("text_inputs"),
    needs=EMBEDDINGS,
    example={"text_inputs": ["Hello, my name is", "The capital of France is"]},
)
async def embed_jumpstart(body: JumpStartBody, context: RequestContext) -> dict[str, Any]:
    """Compute embeddings in the format of SageMaker JumpStart; long texts are truncated."""
    texts = [body.text_inputs] if isinstance(body.text_inputs, str) else body.text_inputs
    check_not_empty(texts, "text_inputs")
    results = await context.pool(make_embed_request(texts, make_truncation(True, context)))
    return {"embedding": await encode_results(results)}


@routes.add(
    "/invocations",
    documented_body_type=reduce(or_, (route.body_type for route in ROUTES.values())),
    reply_type=reduce(or_, (route.reply_type for route in ROUTES.values())),
    read_model_name=None,
    can_be_binary=True,
    example={"input": "Hello, my name is"},
)
async def invoke(body: msgspec.Raw, context: RequestContext) -> Any:
    """Run any of the other requests; the keys of the body select the route."""
    keys: Any = parse_body(BodyKeys, body, is_partial=True)
    await context.select_model(keys.model if isinstance(keys.model, str) else None)
    route = match_route(keys, context.model_info)
    parsed = parse_body(route.body_type, body)
    context.read_options(parsed)
    return await route.handler(parsed, context)


def match_route(keys: Any, model_info: ModelInfo) -> Route:
    present = {name for name in KEY_NAMES if bytes(memoryview(getattr(keys, name))[:4]) != b"null"}
    # in /v1/embeddings, `task` may be an embedding task, which does not select a route
    embedding_tasks = (None, *model_info.adapters, *model_info.instructions, *model_info.prompts)
    task = model_info.default_task if keys.task in embedding_tasks else keys.task
    supported = {path: route for path, route in ROUTES.items() if route.is_supported(model_info)}
    for path, route in supported.items():
        if ROUTE_TASKS.get(path, task) == task and any(present.issuperset(names) for names in REQUIRED_KEYS[path]):
            return route
    expected = [f"{path}: {' or '.join(' + '.join(names) for names in REQUIRED_KEYS[path])}" for path in supported]
    raise InvalidBody(f"Cannot find suitable handler for request. Expected one of: {expected}", param="body")


SAGEMAKER = Dialect("sagemaker", routes)

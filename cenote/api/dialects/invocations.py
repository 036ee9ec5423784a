"""One route for every kind of request, as SageMaker asks; the keys of a body tell which kind it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.dialects.vllm import SCORE_FIELD_PAIRS
from cenote.api.replies import Reply
from cenote.api.request_body import parse_body
from cenote.api.request_context import RequestContext
from cenote.errors import InvalidBody
from cenote.protocol.model_info import ModelInfo

# for each kind of request the keys it can be known by, in the order in which the kinds are tried
REQUIRED_KEYS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "/v1/embeddings": (("input",), ("messages",)),
    "/classify": (("input",), ("messages",)),
    "/rerank": (("query", "documents"),),
    "/score": SCORE_FIELD_PAIRS,
    "/pooling": (("input",), ("messages",), ("data",)),
}
# the routes that do one task: a body that names another one is not theirs
ROUTE_TASKS = {"/v1/embeddings": "embed", "/classify": "classify"}

NULL_JSON = msgspec.Raw(b"null")
KEY_NAMES = sorted({name for choices in REQUIRED_KEYS.values() for names in choices for name in names})
# what a body has, with nothing of it read yet but the task
BodyKeys = msgspec.defstruct("Keys", [("task", Any, None), *((name, msgspec.Raw, NULL_JSON) for name in KEY_NAMES)])


def make_invocations_dialect(dialects: Sequence[Dialect]) -> Dialect:
    """The route over those that the dialects have for one kind each."""
    by_path = {path: route for dialect in dialects for route in dialect.routes for path in route.paths}
    kinds = {path: by_path[path] for path in REQUIRED_KEYS}

    async def invoke(body: msgspec.Raw, call: RequestContext) -> Reply:
        route = match_route(parse_body(BodyKeys, body), kinds, call.model_info)
        return await route.handler(parse_body(route.body_type, body), call)

    return Dialect(
        "sagemaker",
        [
            Route(
                paths=("/invocations",),
                body_type=msgspec.Raw,
                documented_body_type=reduce(or_, (route.body_type for route in kinds.values())),
                handler=invoke,
                summary="Any of the other requests; the first kind whose keys are there answers",
                reply_type=reduce(or_, (route.reply_type for route in kinds.values())),
                can_be_binary=True,
                example={"input": "Hello, my name is"},
            )
        ],
    )


def match_route(keys: Any, routes: Mapping[str, Route], model_info: ModelInfo) -> Route:
    present = {name for name in KEY_NAMES if bytes(memoryview(getattr(keys, name))[:4]) != b"null"}
    purposes = (
        None,
        *model_info.adapters,
        *model_info.instructions,
        *model_info.prompts,
    )  # what vectors are for is no task of a route
    task = model_info.default_task if keys.task in purposes else keys.task
    offered = {path: route for path, route in routes.items() if route.is_supported(model_info)}
    for path, route in offered.items():
        if ROUTE_TASKS.get(path, task) == task and any(present.issuperset(names) for names in REQUIRED_KEYS[path]):
            return route
    expected = [f"{path}: {' or '.join(' + '.join(names) for names in REQUIRED_KEYS[path])}" for path in offered]
    raise InvalidBody(f"Cannot find suitable handler for request. Expected one of: {expected}", param="body")

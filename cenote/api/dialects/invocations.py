"""One route for every kind of request, as SageMaker asks; the keys of a body tell which kind it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.dialects.vllm import PAIRS
from cenote.api.replies import Reply
from cenote.api.request_body import parse
from cenote.api.request_context import Call
from cenote.errors import InvalidBody
from cenote.protocol.requests import About

# for each kind of request the keys it can be known by, in the order in which the kinds are tried
KNOWN_BY: Mapping[str, Sequence[tuple[str, ...]]] = {
    "/v1/embeddings": (("input",), ("messages",)),
    "/classify": (("input",), ("messages",)),
    "/rerank": (("query", "documents"),),
    "/score": PAIRS,
    "/pooling": (("input",), ("messages",), ("data",)),
}
# the routes that do one task: a body that names another one is not theirs
TASK_OF = {"/v1/embeddings": "embed", "/classify": "classify"}

NULL = msgspec.Raw(b"null")
NAMES = sorted({name for choices in KNOWN_BY.values() for names in choices for name in names})
# what a body has, with nothing of it read yet but the task
Keys = msgspec.defstruct("Keys", [("task", Any, None), *((name, msgspec.Raw, NULL) for name in NAMES)])


def invocations(dialects: Sequence[Dialect]) -> Dialect:
    """The route over those that the dialects have for one kind each."""
    by_path = {path: route for dialect in dialects for route in dialect.routes for path in route.paths}
    kinds = {path: by_path[path] for path in KNOWN_BY}

    async def invoke(body: msgspec.Raw, call: Call) -> Reply:
        route = meant(parse(Keys, body), kinds, call.about)
        return await route.handler(parse(route.body, body), call)

    return Dialect(
        "sagemaker",
        [
            Route(
                paths=("/invocations",),
                body=msgspec.Raw,
                documented=reduce(or_, (route.body for route in kinds.values())),
                handler=invoke,
                summary="Any of the other requests; the first kind whose keys are there answers",
                reply=reduce(or_, (route.reply for route in kinds.values())),
                binary=True,
                example={"input": "Hello, my name is"},
            )
        ],
    )


def meant(keys: Any, kinds: Mapping[str, Route], about: About) -> Route:
    present = {name for name in NAMES if bytes(memoryview(getattr(keys, name))[:4]) != b"null"}
    purposes = (
        None,
        *about.adapters,
        *about.instructions,
        *about.prompts,
    )  # what vectors are for is no task of a route
    task = about.default_task if keys.task in purposes else keys.task
    offered = {path: route for path, route in kinds.items() if route.offered(about)}
    for path, route in offered.items():
        if TASK_OF.get(path, task) == task and any(present.issuperset(names) for names in KNOWN_BY[path]):
            return route
    expected = [f"{path}: {' or '.join(' + '.join(names) for names in KNOWN_BY[path])}" for path in offered]
    raise InvalidBody(f"Cannot find suitable handler for request. Expected one of: {expected}", param="body")

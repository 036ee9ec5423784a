"""Large bodies for a route, made from the types of its fields: a new route, or field, has them without further ado."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, get_args

from msgspec import inspect

from cenote.api.dialects.dialect import Route

MAX_ITEMS = 2048  # of a list by the default of --max-request-items
MAX_DEPTH = 5
# each character is a token, or an escape in UTF-8 and JSON that is longer than the character
TEXTS = {"commas": ",", "words": "the old city ", "emoji": "\U0001f600"}


@dataclass(frozen=True, slots=True)
class Fill:
    """A way to fill a field: returns a value of about so many bytes of JSON."""

    name: str
    make: Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class LargeRequest:
    path: str
    name: str  # the fields that are large, and with what
    fields: dict[str, Fill]
    example: dict[str, Any]

    def encode(self, num_bytes: int) -> bytes:
        share = num_bytes // len(self.fields)
        body = self.example | {name: fill.make(share) for name, fill in self.fields.items()}
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def list_large_requests(route: Route) -> list[LargeRequest]:
    """Return a request for each way to fill one field of a route, and for each two ways to fill two fields."""
    path = route.paths[0].replace("{model}", "embedder")
    fills = {(field.encode_name, fill.name): fill for field in list_fields(route) for fill in iter_fills(field.type)}
    chosen: list[tuple[tuple[str, str], ...]] = [(place,) for place in fills]
    chosen += [pair for pair in combinations(fills, 2) if pair[0][0] != pair[1][0]]
    return [
        LargeRequest(
            path,
            ", ".join(f"{field}: {name}" for field, name in places),
            {field: fills[field, name] for field, name in places},
            dict(route.example),
        )
        for places in chosen
    ]


def choose(requests: list[LargeRequest], count: int) -> list[LargeRequest]:
    """Return the same part of the requests of a route in each run: those with lists in two fields are the likeliest."""
    weights = [1 + 20 * (request.name.count(" of ") >= 2) for request in requests]
    rng = random.Random(requests[0].path)
    return list({request.name: request for request in rng.choices(requests, weights, k=count)}.values())


def list_fields(route: Route) -> list[inspect.Field]:
    body_type = route.documented_body_type or route.body_type
    fields = []
    for part in get_args(body_type) or (body_type,):
        info = inspect.type_info(part)
        assert isinstance(info, inspect.StructType), f"the body of {route.paths[0]} has fields"
        fields += info.fields
    return fields


def iter_fills(kind: inspect.Type, depth: int = 0) -> Iterator[Fill]:
    if isinstance(kind, inspect.Metadata):
        yield from iter_fills(kind.type, depth)
    elif isinstance(kind, inspect.UnionType):
        for part in kind.types:
            yield from iter_fills(part, depth)
    elif isinstance(kind, inspect.StrType):
        for name, text in TEXTS.items() if not depth else [("commas", ",")]:
            yield Fill(name, lambda size, text=text: text * max(1, size // len(text.encode())))  # type: ignore[misc]
    elif isinstance(kind, inspect.IntType):
        yield Fill("least", lambda size: max(1, kind.ge or 0))
    elif isinstance(kind, inspect.LiteralType):
        yield from (Fill(str(value), lambda size, value=value: value) for value in kind.values)  # type: ignore[misc]
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType) and depth < MAX_DEPTH:
        yield from iter_lists(kind, depth)
    elif isinstance(kind, inspect.StructType) and depth < MAX_DEPTH:
        yield from iter_structs(kind, depth)
    elif isinstance(kind, inspect.DictType | inspect.AnyType | inspect.RawType):
        yield from iter_objects()


def iter_lists(kind: inspect.ListType | inspect.VarTupleType, depth: int) -> Iterator[Fill]:
    """Yield lists with as many items as are allowed, and with as many as fit."""
    limit = kind.max_length or MAX_ITEMS
    for item in iter_fills(kind.item_type, depth + 1):

        def repeat(size: int, limit: int, item: Fill = item) -> list[Any]:
            smallest = len(json.dumps(item.make(1)).encode()) + 1
            count = max(1, min(limit, size // smallest))
            return [item.make(size // count)] * count

        yield Fill(f"{limit} of {item.name}", lambda size, repeat=repeat: repeat(size, limit))  # type: ignore[misc]
        yield Fill(f"many of {item.name}", lambda size, repeat=repeat: repeat(size, size))  # type: ignore[misc]


def iter_structs(kind: inspect.StructType, depth: int) -> Iterator[Fill]:
    """Yield objects in which one field is large, and the others that are required are small."""
    fills = {field.encode_name: list(iter_fills(field.type, depth + 1)) for field in kind.fields}
    required = {field.encode_name: fills[field.encode_name][0] for field in kind.fields if field.required}
    for field, choices in fills.items():
        for fill in choices:

            def make(size: int, field: str = field, fill: Fill = fill) -> dict[str, Any]:
                return {name: other.make(1) for name, other in required.items()} | {field: fill.make(size)}

            yield Fill(f"{field}: {fill.name}", make)


def iter_objects() -> Iterator[Fill]:
    """Yield objects of any keys, with those that the server reads in one place or another."""
    part, tool = {"type": "text", "text": "a"}, {"name": "a"}
    yield Fill("keys", lambda size: {f"k{number}": 0 for number in range(size // 9)})
    yield Fill("tools", lambda size: {"tools": [tool] * max(1, size // 13)})
    yield Fill("message", lambda size: {"role": "user", "content": "," * size})
    yield Fill("parts", lambda size: {"role": "user", "content": [part] * max(1, size // 27)})
    yield Fill("text", lambda size: {"text": "," * size})
    yield Fill("inputs", lambda size: {"inputs": ["a"] * max(1, size // 4)})

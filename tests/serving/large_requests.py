"""Large bodies for a route, made from the types of its fields: a new route, or field, has them without further ado."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, get_args

from msgspec import inspect

from cenote.api.dialects.dialect import Route

MAX_ITEMS = 2048  # of a list by the default of --max-request-items
MAX_DEPTH, MAX_KEYS = 5, 100_000
# each character is a token, or an escape in UTF-8 and JSON that is longer than the character
TEXTS = {"commas": ",", "words": "the old city ", "emoji": "\U0001f600"}


@dataclass(frozen=True, slots=True)
class Fill:
    """A way to fill a field: returns JSON of about so many bytes, which takes no time."""

    name: str
    make: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class LargeRequest:
    path: str
    name: str  # the fields that are large, and with what
    fields: dict[str, Fill]
    example: dict[str, Any]

    def encode(self, num_bytes: int) -> bytes:
        """Return a body of about so many bytes, but no more: larger ones could be refused unread."""
        values = {name: to_json(value) for name, value in self.example.items()}
        share = num_bytes // len(self.fields)
        while True:
            body = join_object(values | {name: fill.make(share) for name, fill in self.fields.items()})
            if len(body) <= num_bytes:
                return body
            share = share * num_bytes // len(body) - 1


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
            yield Fill(name, partial(repeat_text, text.encode()))
    elif isinstance(kind, inspect.IntType):
        yield Fill("least", lambda size: b"%d" % max(1, kind.ge or 0))
    elif isinstance(kind, inspect.LiteralType):
        yield from (Fill(str(value), lambda size, value=value: to_json(value)) for value in kind.values)  # type: ignore[misc]
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
        yield Fill(f"{limit} of {item.name}", partial(repeat_item, item, limit))
        yield Fill(f"many of {item.name}", partial(repeat_item, item, 2**62))


def iter_structs(kind: inspect.StructType, depth: int) -> Iterator[Fill]:
    """Yield objects in which one field is large, and the others that are required are small."""
    fills = {field.encode_name: list(iter_fills(field.type, depth + 1)) for field in kind.fields}
    required = {field.encode_name: fills[field.encode_name][0] for field in kind.fields if field.required}
    for field, choices in fills.items():
        for fill in choices:

            def make(size: int, field: str = field, fill: Fill = fill) -> bytes:
                return join_object({name: other.make(1) for name, other in required.items()} | {field: fill.make(size)})

            yield Fill(f"{field}: {fill.name}", make)


def iter_objects() -> Iterator[Fill]:
    """Yield objects of any keys, with those that the server reads in one place or another."""
    part, tool = Fill("", lambda _: b'{"type":"text","text":"a"}'), Fill("", lambda _: b'{"name":"a"}')
    yield Fill("keys", lambda size: join_object({f"k{number}": b"0" for number in range(min(size // 9, MAX_KEYS))}))
    yield Fill("tools", lambda size: join_object({"tools": repeat_item(tool, size, size)}))
    yield Fill("message", lambda size: join_object({"role": b'"user"', "content": repeat_text(b",", size)}))
    yield Fill("parts", lambda size: join_object({"role": b'"user"', "content": repeat_item(part, size, size)}))
    yield Fill("text", lambda size: join_object({"text": repeat_text(b",", size)}))
    yield Fill("inputs", lambda size: join_object({"inputs": repeat_item(Fill("", lambda _: b'"a"'), size, size)}))


def repeat_text(text: bytes, size: int) -> bytes:
    return b'"%s"' % (text * max(1, size // len(text)))


def repeat_item(item: Fill, limit: int, size: int) -> bytes:
    count = max(1, min(limit, size // (len(item.make(1)) + 1)))
    return b"[%s]" % b",".join([item.make(size // count)] * count)


def join_object(values: Mapping[str, bytes]) -> bytes:
    return b"{%s}" % b",".join([b"%s:%s" % (to_json(name), value) for name, value in values.items()])


def to_json(value: object) -> bytes:
    return json.dumps(value).encode()

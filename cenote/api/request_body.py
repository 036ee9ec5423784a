"""Validate and parse request bodies; errors name the invalid field."""

from __future__ import annotations

import re
import time
from codecs import utf_8_decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from starlette.types import Scope

from cenote.api.admission.cost import SMALL_BYTES
from cenote.api.field_names import find_misspelt, find_similar
from cenote.api.middleware import get_header
from cenote.api.validation_errors import classify_error
from cenote.errors import BodyTooLarge, InvalidBody, NotJSON

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=msgspec.Struct | msgspec.Raw)

PATH_SEPARATOR = " - at `"  # between the message of msgspec and the path of the invalid value
MAX_ERROR_CHARS = 4096  # of a message of msgspec, which repeats the value if it is none of an enum
MISSING_FIELD_PATTERN = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
# high surrogate too close to the end of a body for its low surrogate: msgspec reports truncated JSON
LONE_SURROGATE = re.compile(rb"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}")
SURROGATE_PAIR_BYTES = 12
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Every JSON value becomes a Python object, and nothing else runs in the process until all of a body are made. Objects,
# lists and keys, of which every one may be new, are the slowest to make.
MAX_VALUES = 3_200_000
MAX_KEYS = MAX_CONTAINERS = 128 * 1024
# Bytes of the objects that are made of a body, by the characters that say how many there are: a number or other value
# and its place in a list; half of a text; a key's place in an object; a list; an object.
OBJECT_BYTES: Mapping[bytes, int] = {b",": 40, b'"': 28, b":": 70, b"[": 64, b"{": 200}
# of a body, whose characters are counted and whose strings are removed at once: other threads wait meanwhile
SLICE_BYTES = 1024**2
MAX_SHOWN_BYTES = 64 * 1024  # of values in errors, which are parsed and shortened
MAX_COMPARED_KEYS = 256  # with a missing field: each takes some hundredths of a millisecond
OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
PAUSE_S = 0.005
NULL_JSON = msgspec.Raw(b"null")
JsonType = Literal["string", "number", "boolean", "array", "object"]
# by the first character of a value
JSON_TYPES: Mapping[str, JsonType] = {'"': "string", "[": "array", "{": "object", "t": "boolean", "f": "boolean"}
JSON_MEDIA_TYPE_PATTERN = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
CHARSET_PATTERN = re.compile(r"charset\s*=\s*\"?(?P<name>[\w.-]+)", re.IGNORECASE)


def check_media_type(scope: Scope) -> None:
    """Raise unless the body of a request is JSON in UTF-8.

    Browsers send other types, or none, cross-site without a preflight request. Requests without a type are therefore
    accepted only without the header Origin, which browsers always send cross-site.
    """
    content_type, content_encoding = get_header(scope, b"content-type"), get_header(scope, b"content-encoding")
    is_untyped = content_type is None and get_header(scope, b"origin") is None
    if not is_untyped and not JSON_MEDIA_TYPE_PATTERN.fullmatch((content_type or "").strip()):
        raise NotJSON(
            "Unsupported Media Type: Only 'application/json' is allowed; set the header Content-Type: application/json",
            param="header.content-type",
            kind="value_error",
            value=content_type,
        )
    charset = CHARSET_PATTERN.search(content_type or "")
    if charset and charset["name"].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise NotJSON(
            f"the body must be UTF-8, got charset {charset['name']}", param="header.content-type", kind="value_error"
        )
    if content_encoding and content_encoding.strip().lower() != "identity":
        raise NotJSON(
            f"Content-Encoding {content_encoding!r} is not supported; send the body uncompressed",
            param="header.content-encoding",
            kind="value_error",
        )


def check_raw_body(raw: bytes) -> int:
    """Return about how many bytes the objects of a body will take besides its texts; 0 for a small body.

    Raises if it is not UTF-8, even in unused fields, or has so many values that they would take very long to make.
    """
    if raw.startswith(BYTE_ORDER_MARK):
        raise invalid_json_error("the body starts with a byte order mark, which is invalid in JSON")
    if not raw.isascii():
        check_utf8(raw)
    if len(raw) <= SMALL_BYTES:
        return 0
    counts = count_chars(raw)
    num_bytes = estimate_objects(counts)
    if num_bytes <= 2 * len(raw) and find_excess(counts) is None:
        return num_bytes
    counts = count_chars(strip_strings(raw))  # texts may have as many of these characters
    if (excess := find_excess(counts)) is not None:
        raise BodyTooLarge(f"the body has {excess}; split the request", param="body")
    return estimate_objects(counts)


def check_utf8(raw: bytes) -> None:
    """Raise unless the bytes are UTF-8; in slices, between which other threads get the interpreter."""
    start, view = 0, memoryview(raw)
    while start < len(raw):
        end = start + SLICE_BYTES
        try:
            start += utf_8_decode(view[start:end], "strict", end >= len(raw))[1]
        except UnicodeDecodeError as error:
            position = start + error.start
            raise invalid_json_error(f"the body is not UTF-8: {error.reason} at byte {position}") from None


def estimate_objects(counts: Mapping[bytes, int]) -> int:
    return sum([counts[char] * num_bytes for char, num_bytes in OBJECT_BYTES.items()])


def find_excess(counts: Mapping[bytes, int]) -> str | None:
    """Return what a body has too many of, if anything."""
    for count, limit, name in (
        (counts[b","], MAX_VALUES, "values"),
        (counts[b":"], MAX_KEYS, "keys of objects"),
        (counts[b"["] + counts[b"{"], MAX_CONTAINERS, "lists and objects"),
    ):
        if count > limit:
            return f"{count:,} {name}, limit {limit:,}"
    return None


def count_chars(raw: bytes) -> dict[bytes, int]:
    if len(raw) <= SLICE_BYTES:
        return {char: raw.count(char) for char in OBJECT_BYTES}
    starts = range(0, len(raw), SLICE_BYTES)
    return {char: sum([raw.count(char, start, start + SLICE_BYTES) for start in starts]) for char in OBJECT_BYTES}


def strip_strings(raw: bytes) -> bytes:
    """Return JSON without its strings, of which the quotes stay."""
    parts, start, is_open = [], 0, False
    while start < len(raw):
        end = start + SLICE_BYTES
        part = raw[start:end]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # the first half of an escape sequence
            end += 1
            part = raw[start:end]
        unescaped = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        chars = np.frombuffer(unescaped, dtype=np.uint8)
        is_quote = chars == ord('"')
        is_inside = np.logical_xor.accumulate(is_quote) != is_open
        parts.append(chars[is_quote | ~is_inside].tobytes())
        is_open ^= bool(np.count_nonzero(is_quote) % 2)
        start = end
    return b"".join(parts)


def parse_body(body_type: type[BodyT], raw: bytes | msgspec.Raw, *, is_partial: bool = False) -> BodyT:
    """Parse a body; raise for misspelt fields, unless the type has only a part of the fields (`is_partial`)."""
    if not is_partial and issubclass(body_type, msgspec.Struct):
        try:
            strict: BodyT = decode(get_strict_decoder(body_type), raw)
            return strict
        except (msgspec.DecodeError, RecursionError):
            check_field_names(body_type, raw)  # an unknown field, or an error that is raised below
    try:
        body: BodyT = decode(get_decoder(body_type), raw)  # type: ignore[arg-type]  # classes are hashable
        return body
    except msgspec.ValidationError as error:
        raise to_invalid_body(body_type, str(error), raw) from None
    except msgspec.DecodeError as error:
        raise invalid_json_error(f"the body is not valid JSON: {_describe_malformed(str(error), raw)}") from None
    except RecursionError:
        raise invalid_json_error("the body is nested too deeply") from None


def decode(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw) -> T:
    """Decode JSON; after a large value, pause.

    Nothing else runs meanwhile, and the event loop needs the interpreter several times to answer another request: it
    would have to wait for the next value each time.
    """
    try:
        return decoder.decode(raw)
    finally:
        if memoryview(raw).nbytes > SLICE_BYTES:
            time.sleep(PAUSE_S)


def invalid_json_error(message: str) -> InvalidBody:
    return InvalidBody(message, param="body", kind="json_invalid")


def _describe_malformed(text: str, raw: bytes | msgspec.Raw) -> str:
    is_surrogate = "surrogate" in text or "end of hex escape" in text
    if "truncated" in text:
        is_surrogate = LONE_SURROGATE.search(bytes(memoryview(raw)[-SURROGATE_PAIR_BYTES:])) is not None
    return "a string contains a lone surrogate" if is_surrogate else _clean_message(text)


@lru_cache(maxsize=256)
def get_decoder(body_type: type[BodyT]) -> msgspec.json.Decoder[BodyT]:
    return msgspec.json.Decoder(body_type, strict=not getattr(body_type, "lenient", False))


@lru_cache(maxsize=256)
def get_strict_decoder(body_type: type[BodyT]) -> msgspec.json.Decoder[BodyT]:
    """Return a decoder that raises for unknown fields."""
    name: str = body_type.__name__
    metaclass: Any = type(body_type)
    strict_type = metaclass(name, (body_type,), {"__module__": body_type.__module__}, forbid_unknown_fields=True)
    return msgspec.json.Decoder(strict_type, strict=not getattr(body_type, "lenient", False))


def check_field_names(body_type: type[msgspec.Struct], raw: bytes | msgspec.Raw) -> None:
    """Raise if a field of the body is probably a misspelt one of the type."""
    if (misspelt := find_misspelt(list_keys(raw), list_fields(body_type))) is not None:
        name, field = misspelt
        message = f"unknown field `{name}`: did you mean `{field}`?"
        raise InvalidBody(message, param=f"body.{name}", kind="extra_forbidden")


def read_type(value: msgspec.Raw) -> JsonType | None:
    """Return the type of a JSON value; None for null."""
    first = chr(memoryview(value)[0])
    return None if first == "n" else JSON_TYPES.get(first, "number")


def list_keys(raw: bytes | msgspec.Raw) -> list[str]:
    """Return the keys of an object whose values are not null, as clients send null for unset fields."""
    try:
        values = decode(OBJECT_DECODER, raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    return [name for name, value in values.items() if bytes(memoryview(value)[:4]) != b"null"]


def list_fields(body_type: type[msgspec.Struct]) -> tuple[str, ...]:
    return body_type.__struct_encode_fields__


def add_similar_name(error: InvalidBody, raw: bytes) -> None:
    """Add to the error for a missing field the name in the body that is probably meant for it."""
    field = (error.param or "").removeprefix("body.")
    if error.kind != "missing" or "." in field:
        return
    names = list_keys(raw)[:MAX_COMPARED_KEYS]
    if (name := find_similar(field, names)) is not None and f"`{name}`" not in error.message:
        error.message += f"; the body has `{name}`: did you mean `{field}`?"


def to_invalid_body(body_type: type[BodyT], text: str, raw: bytes | msgspec.Raw) -> InvalidBody:
    """Convert a msgspec validation error to one with a field path such as `body.input.17` and the value there."""
    message, separator, json_path = text.rpartition(PATH_SEPARATOR)
    message, path = (message, to_field_path(json_path)) if separator else (text, "body")
    message = message[:MAX_ERROR_CHARS]
    kind, value = classify_error(message), find_value(raw, path)
    if missing := MISSING_FIELD_PATTERN.search(message):
        return InvalidBody(f"{missing['name']} is required", param=f"{path}.{missing['name']}", kind=kind, value=value)
    if choices := _list_choices(body_type, path.removeprefix("body.")):
        kind, message = "literal_error", f"{message}; expected one of: {', '.join(choices)}"
    return InvalidBody(f"{path.removeprefix('body.')}: {_clean_message(message)}", param=path, kind=kind, value=value)


def find_value(raw: bytes | msgspec.Raw, path: str) -> Any:
    """Return the value at a path such as `body.input.17`; None if it is long, or other parts are not valid JSON."""
    try:
        for part in path.split(".")[1:]:
            raw = decode(LIST_DECODER, raw)[int(part)] if part.isdecimal() else decode(OBJECT_DECODER, raw)[part]
        return msgspec.json.decode(raw) if memoryview(raw).nbytes <= MAX_SHOWN_BYTES else None
    except (msgspec.DecodeError, RecursionError, LookupError):
        return None


def _list_choices(body_type: type[BodyT], name: str) -> list[str]:
    """Return the values of a `Literal` field; an empty list for other types."""
    parts = [get_hints(body_type).get(name)]  # type: ignore[arg-type]  # classes are hashable
    while any(get_args(part) and get_origin(part) is not Literal for part in parts):
        parts = [inner for part in parts for inner in (get_args(part) if get_origin(part) is not Literal else [part])]
    return [str(value) for part in parts if get_origin(part) is Literal for value in get_args(part)]


@lru_cache(maxsize=256)
def get_hints(body_type: type[msgspec.Struct | msgspec.Raw]) -> Mapping[str, Any]:
    """Return the types of the fields; to resolve them takes milliseconds, which every invalid body would cost."""
    return get_type_hints(body_type)


def to_field_path(json_path: str) -> str:
    """Convert a JSON path such as `$.input[17]` to `body.input.17`."""
    path = json_path.split("`")[-2].replace("[...]", "").replace("[", ".").replace("]", "")
    return "body" + path.removeprefix("$")


def _clean_message(text: str) -> str:
    return text.replace("`", "").replace("Expected", "expected", 1).replace(" | ", " or ")

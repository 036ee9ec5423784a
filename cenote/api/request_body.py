"""From bytes to a typed body, or an error that names the field."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from cenote.errors import BodyTooLarge, InvalidBody, NotJSON

BodyT = TypeVar("BodyT", bound=msgspec.Struct | msgspec.Raw)

VALIDATION_ERROR_PATTERN = re.compile(r"^(?P<what>.*?)(?: - at (?P<place>`.*`))?$", re.DOTALL)
MISSING_FIELD_PATTERN = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
# the first half of a pair so near the end of a body that the second has no room: msgspec takes it for cut off
LONE_SURROGATE = re.compile(rb"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}")
SURROGATE_PAIR_BYTES = 12
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# every value of a body becomes an object of some hundred bytes; lists and objects are the slowest to make
MAX_VALUES = 4_000_000
MAX_CONTAINERS = 500_000
JSON_MEDIA_TYPE_PATTERN = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
CHARSET_PATTERN = re.compile(r"charset\s*=\s*\"?(?P<name>[\w.-]+)", re.IGNORECASE)


def check_media_type(content_type: str | None, content_encoding: str | None) -> None:
    """Only JSON: browsers send the other types across sites without asking."""
    if not JSON_MEDIA_TYPE_PATTERN.fullmatch((content_type or "").strip()):
        raise NotJSON(
            "Unsupported Media Type: Only 'application/json' is allowed; "
            f"got {content_type!r}; set the header Content-Type: application/json"
        )
    charset = CHARSET_PATTERN.search(content_type or "")
    if charset and charset["name"].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise NotJSON(f"the body must be UTF-8, got charset {charset['name']}")
    if content_encoding and content_encoding.strip().lower() != "identity":
        raise NotJSON(f"Content-Encoding {content_encoding!r} is not read here; send the body as it is")


def check_raw_body(raw: bytes) -> None:
    """Refuse what is not UTF-8, even where nobody reads it, and what would fill the memory with tiny objects."""
    if raw.startswith(BYTE_ORDER_MARK):
        raise InvalidBody("the body begins with a byte order mark; JSON has none", param="body")
    try:
        _ = raw.isascii() or raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"the body is not UTF-8: {error.reason} at byte {error.start}", param="body") from None
    if len(raw) <= MAX_CONTAINERS or (
        _count_chars(raw, b",") <= MAX_VALUES and _count_chars(raw, b"[{") <= MAX_CONTAINERS
    ):
        return
    bare = strip_strings(raw)
    for marks, most, what in ((b",", MAX_VALUES, "values"), (b"[{", MAX_CONTAINERS, "lists and objects")):
        if (count := _count_chars(bare, marks)) > most:
            raise BodyTooLarge(
                f"a body has at most {most:,} {what}, this one has {count:,}; send several", param="body"
            )


def strip_strings(raw: bytes) -> bytes:
    """What is left of JSON without its texts."""
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    letters = np.frombuffer(unescaped, dtype=np.uint8)
    return letters[~np.logical_xor.accumulate(letters == ord('"'))].tobytes()


def _count_chars(raw: bytes, chars: bytes) -> int:
    return sum(raw.count(mark) for mark in chars)


def parse_body(body_type: type[BodyT], raw: bytes | msgspec.Raw) -> BodyT:
    try:
        body: BodyT = get_decoder(body_type).decode(raw)  # type: ignore[arg-type]  # a class can be a key
        return body
    except msgspec.ValidationError as error:
        raise to_invalid_body(body_type, str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidBody(f"the body is not valid JSON: {_describe_malformed(str(error), raw)}", param="body") from None
    except RecursionError:
        raise InvalidBody("the body is nested too deeply", param="body") from None


def _describe_malformed(text: str, raw: bytes | msgspec.Raw) -> str:
    half = "surrogate" in text or "end of hex escape" in text
    if "truncated" in text:
        half = LONE_SURROGATE.search(bytes(memoryview(raw)[-SURROGATE_PAIR_BYTES:])) is not None
    return "a lone surrogate is no text" if half else _clean_message(text)


@lru_cache(maxsize=256)
def get_decoder(body_type: type[BodyT]) -> msgspec.json.Decoder[BodyT]:
    return msgspec.json.Decoder(body_type, strict=not getattr(body_type, "lenient", False))


def to_invalid_body(body_type: type[BodyT], text: str) -> InvalidBody:
    """In words, with the place as clients write it: body.input.17"""
    found = VALIDATION_ERROR_PATTERN.match(text)
    assert found is not None, "the pattern takes any text"
    what, place = found["what"], to_field_path(found["place"])
    if missing := MISSING_FIELD_PATTERN.search(what):
        return InvalidBody(f"{missing['name']} is required", param=f"{place}.{missing['name']}")
    if choices := _list_choices(body_type, place.removeprefix("body.")):
        what = f"{what}; there are: {', '.join(choices)}"
    return InvalidBody(f"{place.removeprefix('body.')}: {_clean_message(what)}", param=place)


def _list_choices(body_type: type[BodyT], name: str) -> list[str]:
    """The words that a field of a few words takes."""
    parts = [get_type_hints(body_type).get(name)]
    while any(get_args(part) and get_origin(part) is not Literal for part in parts):
        parts = [inner for part in parts for inner in (get_args(part) if get_origin(part) is not Literal else [part])]
    return [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]


def to_field_path(json_path: str | None) -> str:
    """`$.input[17]` as body.input.17"""
    if not json_path:
        return "body"
    path = json_path.split("`")[-2].replace("[...]", "").replace("[", ".").replace("]", "")
    return "body" + path.removeprefix("$")


def _clean_message(text: str) -> str:
    return text.replace("`", "").replace("Expected", "expected", 1).replace(" | ", " or ")

"""Declare, parse and validate configuration options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from cenote.errors import BadRequest

T = TypeVar("T")

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MAX_PORT = 65535
# replicas of a model, and processes of a replica
MAX_PROCESSES = 128


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A setting and the file, option or default that it comes from."""

    value: T
    source: str


def option(
    help_text: str,
    *,
    default: Any = MISSING,
    make_default: Callable[[], Any] | None = None,
    choices: tuple[str, ...] = (),
    parse: Any = None,
) -> Any:
    """Declare a dataclass field with the help text, allowed values and parser of its command-line flag."""
    metadata = {"help": help_text, "choices": choices, "parse": parse}
    if make_default is not None:
        return field(default_factory=make_default, metadata=metadata)
    return field(default=default, metadata=metadata)


def parse_token_count(text: str | int) -> int:
    """Parse 4096, "8k" (8000), "8K" (8192), "1M", or "auto" or "-1" for automatic."""
    if text == "auto":
        return -1
    if isinstance(text, int):
        return text
    units = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
    unit = units.get(text[-1:], 1)
    try:
        return round(float(text[:-1]) * unit) if unit > 1 else int(text)
    except (ValueError, OverflowError):
        raise BadRequest(f"invalid token count {text!r}; expected for example 4096, 8k (8000) or 8K (8192)") from None


def parse_bytes(text: str | int) -> int:
    """Parse 4096, "512M" (units of 1024 * 1024) or "2G"."""
    try:
        return parse_token_count(text)
    except BadRequest:
        raise BadRequest(f"invalid byte count {text!r}; expected for example 4096, 512M or 2G") from None


def parse_port(value: str | int) -> int:
    """Parse a TCP port; 0 selects a free one."""
    try:
        port = int(value)
    except ValueError:
        port = -1
    if isinstance(value, bool) or not 0 <= port <= MAX_PORT:
        raise BadRequest(
            f"invalid port {value!r}; expected a number from 1 to {MAX_PORT}, or 0 for a free port", param="port"
        )
    return port


def normalize_log_level(text: str) -> str:
    """Convert level names of other logging libraries to those of Python."""
    return {"warn": "warning", "trace": "debug", "notset": "debug"}.get(text.lower(), text.lower())


def check_known_names(names: Mapping[str, Any], known_names: set[str], kind: str) -> None:
    """Raise BadRequest with the closest known name if a name is unknown."""
    for name in names:
        if name not in known_names:
            close = get_close_matches(name, known_names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"available: {', '.join(sorted(known_names))}"
            raise BadRequest(f"unknown {kind} {name!r}; {hint}", param=name)


def check_choices(config: Any, *, unlisted: tuple[object, ...] = ()) -> None:
    """Raise BadRequest if an option is not one of its choices.

    `unlisted` values are accepted without being shown, and None where it is the default.
    """
    for item in option_fields(type(config)):
        choices, value = item.metadata["choices"], getattr(config, item.name)
        if choices and value not in (*choices, *unlisted) and not (value is None and item.default is None):
            raise BadRequest(f"invalid {item.name}={value!r}; expected one of: {', '.join(choices)}", param=item.name)


def check_positive(config: Any, names: Iterable[str]) -> None:
    """Raise BadRequest unless each of the named options is None or a number greater than 0."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise BadRequest(f"{name} must be greater than 0, got {value!r}", param=name)


def option_fields(config: type) -> list[Field[Any]]:
    """Return the options of a config class in the order of declaration, for command-line flags and documentation."""
    return [item for item in fields(config) if "help" in item.metadata]

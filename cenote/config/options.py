"""Declare, parse and validate configuration options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from cenote.errors import BadRequest

T = TypeVar("T")


MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A decision that remembers who took it."""

    value: T
    source: str


def option(help_text: str, *, default: Any = MISSING, choices: tuple[str, ...] = (), parse: Any = None) -> Any:
    """A field with the help text, the allowed values and the reader that its flag uses."""
    return field(default=default, metadata={"help": help_text, "choices": choices, "parse": parse})


def parse_token_count(text: str | int) -> int:
    """4096, "8k" (thousands), "8K" (of 1024), "1M", "-1" for automatic."""
    if isinstance(text, int):
        return text
    units = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
    unit = units.get(text[-1:], 1)
    try:
        return round(float(text[:-1]) * unit) if unit > 1 else int(text)
    except (ValueError, OverflowError):
        raise BadRequest(f"{text!r} is no number of tokens; write 4096, 8k (8000) or 8K (8192)") from None


def parse_bytes(text: str | int) -> int:
    """4096, "512M" (of 1024 * 1024), "2G"."""
    try:
        return parse_token_count(text)
    except BadRequest:
        raise BadRequest(f"{text!r} is no number of bytes; write 4096, 512M or 2G") from None


def parse_port(value: str | int) -> int:
    """A TCP port; 0 stands for any that is free."""
    try:
        port = int(value)
    except ValueError:
        port = -1
    if isinstance(value, bool) or not 0 <= port <= MAX_PORT:
        raise BadRequest(
            f"{value!r} is not a port; give a number from 1 to {MAX_PORT}, or 0 for any that is free", param="port"
        )
    return port


def normalize_log_level(text: str) -> str:
    """In our words, whichever logging library it was written for."""
    return {"warn": "warning", "trace": "debug"}.get(text.lower(), text.lower())


def check_known_names(names: Mapping[str, Any], known_names: set[str], kind: str) -> None:
    for name in names:
        if name not in known_names:
            near = get_close_matches(name, known_names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known_names))}"
            raise BadRequest(f"no {kind} is called {name!r}; {hint}", param=name)


def option_fields(config: type) -> list[Field[Any]]:
    """The options of a config class in the order of their declaration, for flags and documents."""
    return [item for item in fields(config) if "help" in item.metadata]

"""Settings of an API key: its share of the server, its limits and what it may do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from cenote.config.options import parse_token_count
from cenote.errors import LoadError

MAX_WEIGHT = 1000.0
FLAGS = ("priority", "admin")


@dataclass(frozen=True, slots=True)
class KeySettings:
    """What one API key may use; defaults for keys without settings, and for servers without keys."""

    digest: bytes = b""  # SHA-256 of the key
    tenant: str = ""  # the same as hex digits
    weight: float = 1.0  # share of the queue and of the device, relative to the other keys
    max_queue_tokens: int | None = None  # in flight
    max_tokens_per_minute: int | None = None
    may_prioritize: bool = False  # may set `priority` and the header X-Priority
    is_admin: bool = False  # may use admin routes
    has_settings: bool = False  # whether its line in the file has any


ANONYMOUS = KeySettings(may_prioritize=True)


def parse_key_lines(lines: Iterable[bytes]) -> list[KeySettings]:
    """Parse lines `KEY [name=value ...] [flag ...]`; empty lines and lines that start with # are skipped.

    A line in which no word looks like a setting is a key that contains spaces.
    """
    keys = []
    for number, line in enumerate(lines, 1):
        key, *settings = line.split() or [b"#"]
        if key.startswith(b"#"):
            continue
        words = [word.decode("utf-8", "replace") for word in settings]
        if not any("=" in word or word in FLAGS for word in words):
            key, words = line.strip(), []
        keys.append(_parse_key(key, words, number))
    return keys


def make_key(key: str, *, is_admin: bool = False) -> KeySettings:
    return KeySettings(*_hash(key.encode()), is_admin=is_admin, may_prioritize=is_admin)


def merge_keys(keys: Sequence[KeySettings]) -> list[KeySettings]:
    """Return one entry per key: a line with settings or the admin list take precedence over a bare key."""
    merged: dict[bytes, KeySettings] = {}
    for key in keys:
        known = merged.get(key.digest)
        if known is None or key.has_settings or (key.is_admin and not known.has_settings):
            merged[key.digest] = key
    return list(merged.values())


def _hash(key: bytes) -> tuple[bytes, str]:
    digest = hashlib.sha256(key).digest()
    return digest, digest.hex()


def _parse_key(key: bytes, words: Sequence[str], line_number: int) -> KeySettings:
    values: dict[str, Any] = {}
    for word in words:
        name, has_value, text = word.partition("=")
        if not has_value and name in FLAGS:
            values[name] = True
        elif has_value and name in PARSERS and name not in values:
            values[name] = _parse_value(name, text, line_number)
        else:  # the word itself is not shown: it may be part of a key
            raise LoadError(
                f"line {line_number} of the API key file: unknown or repeated setting after the key; expected "
                f"{', '.join(f'{name}=N' for name in PARSERS)} or {', '.join(FLAGS)}"
            )
    is_admin = values.pop("admin", False)
    return KeySettings(
        *_hash(key),
        may_prioritize=values.pop("priority", False) or is_admin,
        is_admin=is_admin,
        has_settings=bool(words),
        **{name.replace("-", "_"): value for name, value in values.items()},
    )


def _parse_value(name: str, text: str, line_number: int) -> float:
    try:
        value = PARSERS[name](text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0) or (name == "weight" and value > MAX_WEIGHT):
        limit = f" and at most {MAX_WEIGHT:g}" if name == "weight" else ""
        raise LoadError(
            f"line {line_number} of the API key file: invalid {name}={text}; expected a number above 0{limit}"
        )
    return value


PARSERS: dict[str, Callable[[str], float]] = {
    "weight": float,
    "max-queue-tokens": parse_token_count,
    "max-tokens-per-minute": parse_token_count,
}

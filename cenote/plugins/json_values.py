"""Convert the results of plugins to JSON values."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec


def to_json_value(value: Any) -> Any:
    """Convert pydantic models, dataclasses, structs, tensors, arrays and dates to JSON values; bytes become base64."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise TypeError("an integer of more than 64 bits")
        return value
    if isinstance(value, str):
        value.encode()  # raises for a lone surrogate, which has no UTF-8 form
        return value
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    if isinstance(value, Mapping):
        return {_to_json_key(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(item) for item in value]
    return to_json_value(_unwrap(value))


def _unwrap(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    for name in ("model_dump", "tolist", "isoformat"):  # pydantic models; tensors and arrays; dates
        if callable(unwrap := getattr(value, name, None)):
            return unwrap()
    raise TypeError(f"{type(value).__name__}, which has no JSON form")


def _to_json_key(key: object) -> str:
    if isinstance(key, str):
        return to_json_value(key)  # type: ignore[no-any-return]
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"a key of type {type(key).__name__}; JSON keys must be strings")

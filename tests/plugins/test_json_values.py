"""Conversion of plugin results to JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch

from cenote.plugins.json_values import to_json_value


class Colour(Enum):
    RED = "red"


@dataclass
class Response:
    colour: Colour
    scores: Any


class PydanticLike:
    """Has the conversion method of pydantic models."""

    def model_dump(self) -> dict[str, Any]:
        return {"response": Response(Colour.RED, np.float32(0.5)), "day": date(2026, 1, 2)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, "x", None, True]}, {"a": [1, 2.5, "x", None, True]}),
        ((1, {2: "two"}), [1, {"2": "two"}]),
        (torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16), [[1.5, 2.0]]),
        (np.arange(3), [0, 1, 2]),
        (b"\xff\x00", "/wA="),
        (PydanticLike(), {"response": {"colour": "red", "scores": 0.5}, "day": "2026-01-02"}),
        (frozenset([7]), [7]),
    ],
)
def test_values_are_converted_to_json_values(value: Any, expected: Any) -> None:
    assert to_json_value(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "object, which has no JSON form"),
        ({(1, 2): 3}, "a key of type tuple"),
        ([2**64], "more than 64 bits"),
        ("\ud800", "surrogates not allowed"),
        (Response, "type, which has no JSON form"),
    ],
)
def test_values_without_a_json_form_are_refused(value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        to_json_value(value)

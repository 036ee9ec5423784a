"""Vectors of well-known models, computed in float32, to find a server that pools or normalizes in another way."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from cenote.doctor.answers import Vector

FILE = "reference_vectors.json"


@dataclass(frozen=True)
class ReferenceVectors:
    model: str
    is_normalized: bool
    vectors: list[Vector]  # of REFERENCE_TEXTS
    other_pooling: dict[str, list[Vector]]  # of the first of these texts, with other pooling methods


def find_reference(model: str) -> ReferenceVectors | None:
    """Return the vectors of a model by its name, with or without an organization and a tag."""
    name = model.rstrip("/").rpartition("/")[2].partition(":")[0].lower()
    for entry in json.loads((files("cenote.doctor") / FILE).read_text()):
        if name in entry["names"]:
            others = {method: decode(text, entry) for method, text in entry["other_pooling"].items()}
            return ReferenceVectors(entry["model"], entry["normalized"], decode(entry["vectors"], entry), others)
    return None


def decode(text: str, entry: dict[str, Any]) -> list[Vector]:
    rows = np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(-1, entry["dimensions"])
    return list(rows.astype(np.float64))

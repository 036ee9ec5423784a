"""Catalog of supported models: example checkpoints per architecture and how its outputs were verified."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from cenote.models.registry import CheckpointKind, find_registered

# of the libraries that outputs were compared with
VERSIONS = {"transformers": "5.22", "sentence_transformers": "6.2", "vllm": "0.32.0"}


@dataclass(frozen=True, slots=True)
class SupportedModel:
    name: str  # of the architecture
    kind: CheckpointKind
    models: str  # examples on the hub
    verified_with: str


@cache
def read_supported_models() -> tuple[SupportedModel, ...]:
    """Return the table of every supported architecture, in the order of the registry.

    `kind` of a row is that of its published models, where the registry has another. `vllm_difference` is the largest
    one from outputs of vLLM, of tiny random float32 checkpoints on its CPU build; `vllm_scope` is what was compared.
    """
    text = (files("cenote.models") / "supported_models.json").read_text(encoding="utf-8")
    return tuple(map(_parse_row, json.loads(text)))


def _parse_row(row: dict[str, Any]) -> SupportedModel:
    name, compared = row["name"], row["compared_with"]
    if "vllm_difference" in row:
        compared += f"; vLLM {{vllm}} (within {row['vllm_difference']})"
    registered = find_registered(name)
    assert registered is not None, f"{name} is not in the registry"
    return SupportedModel(name, row.get("kind", registered[1]), row.get("models", ""), compared.format(**VERSIONS))

"""Tables for users: the supported architectures, and published models whose layout is tested.

Both say what outputs were compared with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from cenote.models.registry import CheckpointKind, find_registered

# of the libraries that outputs were compared with
VERSIONS = {"transformers": "5.22", "sentence_transformers": "6.2", "vllm": "0.32.0"}


# how outputs were compared: on the published weights; on random weights in the published layout, with the library that
# the model is made for; by tests of its architecture; or the layout is refused with an error that says what to do
Check = Literal["real weights", "true layout", "architecture only", "refused"]
# what the files were rebuilt from: public copies, cards and code; the files of another model, with changes; or, some of
# them, memory
Source = Literal["public sources", "a similar model", "memory"]


@dataclass(frozen=True, slots=True)
class CheckedModel:
    name: str  # on the hub
    architecture: str
    check: Check
    compared_with: str
    files: Source
    settings: Mapping[str, Any]  # values of `cenote inspect --json`

    @property
    def short_name(self) -> str:
        return self.name.rpartition("/")[2]


@cache
def read_checked_models() -> tuple[CheckedModel, ...]:
    """Return the table; the files of every model are described in tests/layouts, which test its row."""
    text = (files("cenote.models") / "checked_models.json").read_text(encoding="utf-8")
    return tuple(CheckedModel(**row) for row in json.loads(text))


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

"""Published models whose layout is tested: the settings they must resolve to, and what outputs were compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

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

"""Read the model card (README.md) of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cenote.loading.checkpoint import Checkpoint

MAX_CARD_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The model card (README.md): YAML front matter and text."""

    pipeline_tag: str | None = None
    base_models: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    own_names: tuple[str, ...] = ()  # of the benchmark results in model-index
    text: str = ""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> ModelCard:
        if (path := checkpoint.find_file("README.md")) is None:
            return cls()
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CARD_CHARS)
        head = _parse_front_matter(text)
        tag, base = head.get("pipeline_tag"), head.get("base_model") or ()
        names = [base] if isinstance(base, str) else base if isinstance(base, list) else []
        index = [entry for entry in _as_list(head.get("model-index")) if isinstance(entry, dict)]
        return cls(
            pipeline_tag=tag if isinstance(tag, str) else None,
            base_models=tuple(map(str, names)),
            tags=tuple(map(str, _as_list(head.get("tags")))),
            own_names=tuple(str(entry["name"]) for entry in index if "name" in entry),
            text=text,
        )


def _parse_front_matter(text: str) -> Mapping[str, Any]:
    if not text.startswith("---"):
        return {}
    try:
        head = yaml.safe_load(text[3:].partition("\n---")[0])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}  # the front matter is optional information
    return head if isinstance(head, dict) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

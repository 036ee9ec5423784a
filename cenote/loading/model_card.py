"""Read the model card (README.md) of a checkpoint: optional, and as untrusted as the rest of the folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint

CARD_FILE = "README.md"
MAX_CARD_CHARS = 1_000_000
# entries of the front matter that are read, and how long each may be; benchmark results are much longer
ENTRIES = ("pipeline_tag", "library_name", "base_model", "tags")
MAX_ENTRY_CHARS = 20_000
MAX_BRACKETS = 20  # the parser's time grows with the square of their depth
ENTRY_START = re.compile(r"^(?=[\w-]+ *:)", re.MULTILINE)
# an entry of model-index; names of tasks, datasets and metrics are indented further
INDEX_NAME = re.compile(r"^ {0,2}- name:(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PublishedCard:
    """The model card (README.md): YAML front matter and text."""

    pipeline_tag: str | None = None
    library_name: str | None = None
    base_models: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    own_names: tuple[str, ...] = ()  # of the benchmark results in model-index
    text: str = ""
    source: str = CARD_FILE  # its path

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> PublishedCard:
        """Return the model card; an empty one if there is none that can be read."""
        try:
            if (path := checkpoint.find_file(CARD_FILE)) is None:
                return cls()
            with path.open(encoding="utf-8-sig", errors="replace") as file:
                text = file.read(MAX_CARD_CHARS)
        except (OSError, LoadError):
            return cls()
        return cls.from_text(text, str(path))

    @classmethod
    def from_text(cls, text: str, source: str = CARD_FILE) -> PublishedCard:
        entries = _split_front_matter(text)
        values = {name: _parse_entry(name, entries.get(name, "")) for name in ENTRIES}
        return cls(
            pipeline_tag=next(iter(values["pipeline_tag"]), None),
            library_name=next(iter(values["library_name"]), None),
            base_models=values["base_model"],
            tags=values["tags"],
            own_names=tuple(name.strip(" '\"") for name in INDEX_NAME.findall(entries.get("model-index", ""))),
            text=text,
            source=source,
        )

    @property
    def facts(self) -> Mapping[str, str | list[str]]:
        """The entries that say what kind of model it is."""
        facts = {"pipeline_tag": self.pipeline_tag, "library_name": self.library_name}
        models = {"base_model": list(self.base_models)} if self.base_models else {}
        return {name: value for name, value in facts.items() if value is not None} | models


def _split_front_matter(text: str) -> dict[str, str]:
    """Return the text of each top-level entry by its name."""
    if not text.startswith("---"):
        return {}
    blocks = ENTRY_START.split(text[3:].partition("\n---")[0])
    return {block.partition(":")[0].strip(): block for block in blocks}


def _parse_entry(name: str, block: str) -> tuple[str, ...]:
    """Return the strings of an entry; none if it is not valid."""
    if len(block) > MAX_ENTRY_CHARS or block.count("[") + block.count("{") > MAX_BRACKETS:
        return ()
    try:
        # makes nothing but strings, lists and mappings: tags of YAML have no effect
        values: Any = yaml.load(block, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return ()
    value = values.get(name) if isinstance(values, dict) else None
    items = value if isinstance(value, list) else [value]
    return tuple(item for item in items if isinstance(item, str) and item not in ("", "null", "~"))

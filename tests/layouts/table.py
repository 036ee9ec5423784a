"""The table of published models: TOML entries, each with a layout to build.

The settings that it must resolve to are those of the package's table, which users see.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cenote.models.catalog import read_checked_models

TABLE_FOLDER = Path(__file__).parent / "table"
SHARED_LAYOUTS = TABLE_FOLDER / "shared_layouts.toml"
# what outputs are compared with: a library on the same folder, a plain implementation in another test, or an error
Truth = Literal["sentence-transformers", "transformers", "plain", "refused"]
ENTRY_KEYS = {
    "name",
    "builder",
    "like",
    "layout",
    "truth",
    "test",
    "message",
    "source",
    "real",
    "checked",
    "doubt",
}
LABEL_KEYS = ("id2label", "label2id")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    name: str
    truth: Truth
    source: str  # where the layout was seen; what was not says "memory", "assumed" or "not seen"
    builder: str | None = None  # a function of tests/layouts/builders, if `layout` cannot describe the folder
    layout: Mapping[str, Any]
    expect: Mapping[str, Any]  # values of `cenote inspect --json`
    test: str | None = None  # of truth "plain"
    message: str | None = None  # of truth "refused": a pattern of the error
    real: str | None = None  # a test with the real weights
    doubt: str | None = None  # a pattern of the only doubt about its settings
    checked: str | None = None  # how, if it is not what truth and builder say
    like: str | None = None  # the model whose source it has
    area: str = ""  # the name of the TOML file


@cache
def read_table() -> tuple[PublishedModel, ...]:
    """Return the entries of all files; `like` copies another entry, and the tables of both are merged."""
    raw: dict[str, dict[str, Any]] = {}
    settings = {row.name: row.settings for row in read_checked_models()}
    shared = tomllib.loads(SHARED_LAYOUTS.read_text())["layouts"]
    for path in sorted(TABLE_FOLDER.glob("*.toml")):
        document = tomllib.loads(path.read_text())
        layouts = {
            name: merge(shared[layout["base"]], layout) if "base" in layout else layout
            for name, layout in document.get("layouts", {}).items()
        }
        for entry in document.get("model", []):
            assert not entry.keys() - ENTRY_KEYS, f"{path.name}: {entry['name']} has unknown keys"
            assert entry["name"] not in raw, f"{entry['name']} is listed twice"
            if isinstance(base := entry.get("layout", {}).get("base"), str):
                entry["layout"] = merge(layouts[base], entry["layout"])
            raw[entry["name"]] = {**_inherit(entry, raw), "area": path.stem}
    return tuple(
        PublishedModel(**{**entry, "layout": _replace_nulls(entry.get("layout", {}))}, expect=settings.get(name, {}))
        for name, entry in raw.items()
    )


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables merged; other values, and names of labels, are replaced."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping) and key not in LABEL_KEYS
        merged[key] = merge(merged[key], value) if both else value
    return merged


def _replace_nulls(value: Any) -> Any:
    """Return a table with None for "null", which TOML lacks."""
    if isinstance(value, Mapping):
        return {key: _replace_nulls(item) for key, item in value.items()}
    return None if value == "null" else value


def _inherit(entry: Mapping[str, Any], earlier: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if "like" not in entry:
        return dict(entry)
    other = earlier[entry["like"]]
    own = {key: value for key, value in entry.items() if key != "like" or "source" not in entry}
    return merge({key: value for key, value in other.items() if key not in ("area", "like", "real")}, own)

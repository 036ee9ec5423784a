"""Write the table of published models into the package: `python -m tests.layouts.export`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.layouts.table import PublishedModel, read_table

TARGET = Path(__file__).parents[2] / "cenote" / "models" / "checked_models.json"
RECALLED = re.compile("memory|assumed|not seen")  # in the sources of the table
CHECKS = {
    "sentence-transformers": ("true layout", "Sentence Transformers"),
    "transformers": ("true layout", "Transformers"),
    "plain": ("architecture only", "an independent implementation"),
    "refused": ("refused", ""),
}


def format_table() -> str:
    rows = [json.dumps(_make_row(model), ensure_ascii=False) for model in sorted(read_table(), key=_sort_key)]
    return "[\n" + ",\n".join(rows) + "\n]\n"


def _sort_key(model: PublishedModel) -> str:
    return model.name.lower()


def _make_row(model: PublishedModel) -> dict[str, Any]:
    check, compared = CHECKS[model.truth]
    if model.truth == "plain" and model.builder is not None:
        check = "true layout"  # the named test compares the folder that the builder writes
    names = model.layout.get("config", {}).get("architectures", [""])
    return {
        "name": model.name,
        "architecture": model.expect.get("architecture", names[0]),
        "check": "real weights" if model.real else model.checked or check,
        "compared_with": compared,
        "files": "memory" if RECALLED.search(model.source) else "a similar model" if model.like else "public sources",
        "settings": model.expect,
    }


if __name__ == "__main__":
    TARGET.write_text(format_table())

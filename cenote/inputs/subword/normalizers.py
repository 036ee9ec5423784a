"""Normalizers that the native encoder knows."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cenote.inputs.subword.components import UnknownTokenizer, flatten_steps

# steps in the order in which they may follow each other
ORDER = ("strip before", "Precompiled", "strip after", "collapse", "Prepend", "replace")


@dataclass(frozen=True, slots=True)
class SentencePieceNormalizer:
    char_map: bytes = b""  # precompiled
    strips_before: int = 0  # the character map, at the ends of the text: 1 left | 2 right
    strips_after: int = 0
    collapses_spaces: bool = False
    collapsed_space: str = " "
    prepends: bool = False  # U+2581
    replaces_spaces: bool = False  # by U+2581


def parse_nfc(state: Mapping[str, Any] | None) -> bool:
    """Return whether the normalizer is NFC, or False for none; raise UnknownTokenizer for others."""
    names = [step["type"] for step in flatten_steps(state, "normalizers")]
    if names not in ([], ["NFC"]):
        raise UnknownTokenizer(f"byte-level BPE with the normalizer {' + '.join(names)}")
    return bool(names)


def parse_sentencepiece_normalizer(state: Mapping[str, Any] | None) -> SentencePieceNormalizer:
    """Read the state of a normalizer; raise UnknownTokenizer."""
    steps = flatten_steps(state, "normalizers")
    has_map = any(step["type"] == "Precompiled" for step in steps)
    found: dict[str, Mapping[str, Any]] = {}
    for step in steps:
        name = _classify(step)
        if name == "strip":
            name = "strip before" if has_map and "Precompiled" not in found else "strip after"
        if name is None or any(ORDER.index(other) >= ORDER.index(name) for other in found):
            raise UnknownTokenizer(f"normalizer {' + '.join(step['type'] for step in steps)}")
        found[name] = step
    return SentencePieceNormalizer(
        char_map=base64.b64decode(found["Precompiled"]["precompiled_charsmap"]) if has_map else b"",
        strips_before=_strip_sides(found.get("strip before")),
        strips_after=_strip_sides(found.get("strip after")),
        collapses_spaces="collapse" in found,
        collapsed_space=found["collapse"]["content"] if "collapse" in found else " ",
        prepends="Prepend" in found,
        replaces_spaces="replace" in found,
    )


def _classify(step: Mapping[str, Any]) -> str | None:
    """Return the name of a known step: in ORDER, or "strip"."""
    match step:
        case {"type": "Precompiled"}:
            return "Precompiled"
        case {"type": "Strip"}:
            return "strip"
        case {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " " | "\u2581"}:
            return "collapse"
        case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
            return "replace"
        case {"type": "Prepend", "prepend": "\u2581"}:
            return "Prepend"
    return None


def _strip_sides(step: Mapping[str, Any] | None) -> int:
    return 0 if step is None else step["strip_left"] + 2 * step["strip_right"]

"""What the readers of normalizers, pre-tokenizers and vocabularies share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

META_SPACE = "\u2581"  # stands for a space in SentencePiece vocabularies


class UnknownTokenizer(Exception):
    """The native encoder does not know this tokenizer; the message is the reason."""


def flatten_steps(state: Mapping[str, Any] | None, field: str) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer; `field` has the steps of a sequence."""
    if state is None:
        return []
    if state["type"] != "Sequence":
        return [state]
    return [step for part in state[field] for step in flatten_steps(part, field)]


def to_internal(token: str) -> str:
    """Return a token of a SentencePiece tokenizer as the C code has it: with spaces for U+2581."""
    return token.replace(META_SPACE, " ")

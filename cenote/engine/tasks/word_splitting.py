"""Split texts into the words that GLiNER and GLiNER2 were trained with."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from typing import NamedTuple

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
SENTENCE_ENDS = (".", "!", "?")


class Words(NamedTuple):
    texts: list[str]
    spans: list[tuple[int, int]]  # start and end in characters


def split_words(text: str) -> Words:
    spans = [match.span() for match in WORD.finditer(text)]
    return Words([text[start:end] for start, end in spans], spans)


def split_as_gliner2(text: str) -> Words:
    """Return lower-cased words; a text without a period at its end is read with one."""
    full = text if text.endswith(SENTENCE_ENDS) else f"{text}."
    matches = list(_gliner2_word().finditer(full)) if text.strip() else []
    return Words([match.group().lower() for match in matches], [match.span() for match in matches])


@cache  # the table of Unicode is long
def _gliner2_word() -> re.Pattern[str]:
    marks = "".join(char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char)[0] == "M")
    letter = rf"[\w{marks}\u200c\u200d]"
    parts = (
        r"https?://\S+|www\.\S+",
        r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}",
        r"@[a-z0-9_]+",
        rf"{letter}+(?:[-_]{letter}+)*",
        r"\S",
    )
    return re.compile("|".join(parts), re.IGNORECASE)

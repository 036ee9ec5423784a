"""Late chunking: documents in chunks, and where a long text is split into them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

from cenote.errors import BadRequest
from cenote.protocol.input_types import ChunkedDocument

DEFAULT_CHUNK_SIZE = 1000

Offsets = tuple[int, int]  # of a chunk in its document, in characters

# where a chunk may end, best first: before a blank line, a line break, the space after a sentence, any white space
BOUNDARIES = [
    re.compile(pattern) for pattern in (r"\n[^\S\n]*\n", r"\n", r"(?<=[.!?])[\"')\]]*(?=\s)|(?<=[。！？])", r"\s")
]


def split_text(text: str, chunk_size: int) -> list[Offsets]:
    """Return consecutive parts of at most `chunk_size` characters that cover the text.

    A part ends in the second half of its size at the last of the best boundaries there, else in the middle of a word.
    White space is at the start of the following part, as in the tokens of most models. Parts of white space alone,
    which may have no tokens, are joined to the part before.
    """
    check_chunk_size(chunk_size)
    ends: list[int] = []
    start, starts_blank = 0, False
    while start < len(text):
        end = len(text) if start + chunk_size >= len(text) else _find_end(text, start, chunk_size)
        is_blank = text[start:end].isspace()
        if ends and (is_blank or starts_blank):
            ends[-1] = end
            starts_blank &= is_blank
        else:
            ends.append(end)
            starts_blank = is_blank
        start = end
    return list(pairwise([0, *ends]))


def _find_end(text: str, start: int, chunk_size: int) -> int:
    first, last = start + max(1, chunk_size // 2), start + chunk_size
    for boundary in BOUNDARIES:
        if matches := list(boundary.finditer(text, first, last + 1)):
            return matches[-1].start() if matches[-1].group().isspace() else matches[-1].end()
    return last


def get_offsets(chunks: Sequence[str]) -> list[Offsets]:
    """Return where the chunks of a document are, in characters."""
    return list(pairwise(accumulate(map(len, chunks), initial=0)))


def make_document(chunks: Sequence[object], param: str = "input") -> ChunkedDocument:
    """Return the document of these chunks; raise unless they are texts."""
    if not chunks:
        raise BadRequest("late_chunking needs at least one chunk", param=param)
    for index, chunk in enumerate(chunks):
        if not isinstance(chunk, str):
            raise BadRequest(
                f"late_chunking needs texts, the consecutive chunks of a document; chunk {index} is "
                f"{type(chunk).__name__}",
                param=param,
            )
    return ChunkedDocument(tuple(chunk for chunk in chunks if isinstance(chunk, str)))


def split_document(text: object, chunk_size: int, param: str = "input") -> ChunkedDocument:
    """Return a text as the document of its parts of at most `chunk_size` characters."""
    if not isinstance(text, str):
        raise BadRequest(f"chunk_size splits a text into chunks, got {type(text).__name__}", param=param)
    return ChunkedDocument(tuple(text[start:end] for start, end in split_text(text, chunk_size)) or ("",))


def check_chunk_size(chunk_size: int) -> None:
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise BadRequest(f"chunk_size is a number of characters, at least 1, got {chunk_size!r}", param="chunk_size")

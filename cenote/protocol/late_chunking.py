"""Late chunking: documents in chunks, where a long text is split into them, and chunks of a number of tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

from cenote.errors import BadRequest, Unsupported
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.params import LateChunkingParams, PoolingParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import LateChunk, LateChunkingMetadata

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
        found: re.Match[str] | None = None
        for match in boundary.finditer(text, first, last + 1):
            found = match  # the last one counts, and a list of all would take memory
        if found is not None:
            return found.start() if found.group().isspace() else found.end()
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


def find_late_chunking_params(request: PoolRequest) -> list[LateChunkingParams | None]:
    """Return the late chunking params of each input, or an empty list if no input has any."""
    params = request.params
    if isinstance(params, PoolingParams):
        late = params.late_chunking_params
        return [] if late is None else [late] * len(request.inputs)
    found = [getattr(item, "late_chunking_params", None) for item in params or ()]
    return found if any(item is not None for item in found) else []


def check_late_chunking(request: PoolRequest) -> None:
    """Raise if an input has chunks of a number of tokens and is not a text that is computed as it is."""
    if not (found := find_late_chunking_params(request)):
        return
    tokenization = request.tokenization
    if (
        tokenization.truncate_prompt_tokens is not None
        or tokenization.pad_prompt_tokens not in (None, 0)
        or tokenization.do_lower_case
    ):
        raise BadRequest(
            "Late chunking does not support input padding, truncation or renderer text normalization",
            param="late_chunking_params",
        )
    for late, item in zip(found, request.inputs, strict=False):
        if late is not None and not (isinstance(item, str) and item):
            raise BadRequest("Late chunking requires nonempty plain-text input", param="input")


def describe_chunks(
    text: str, prompt: str | None, chunk_size: int, num_tokens: int, offsets: Sequence[Offsets | None] | None
) -> LateChunkingMetadata:
    """Return the places of the chunks of a text; `offsets` are those of the tokens of the prompt and the text."""
    if offsets is None or len(offsets) != num_tokens:
        raise Unsupported(
            "Late chunking requires offsets aligned to all input tokens; this model inserts tokens into its texts",
            param="late_chunking_params",
        )
    num_before = len(prompt or "")
    chunks = []
    for start in range(0, num_tokens, chunk_size):
        end = min(start + chunk_size, num_tokens)
        spans = [span for span in offsets[start:end] if span is not None and max(span[0], num_before) < span[1]]
        char_range = None
        if spans:
            first, last = min(first for first, _ in spans), max(last for _, last in spans)
            char_range = max(0, first - num_before), last - num_before
        chunks.append(LateChunk((start, end), char_range))
    return LateChunkingMetadata(chunk_size, num_tokens, chunks)

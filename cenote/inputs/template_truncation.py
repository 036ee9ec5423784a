"""Texts inside a frame that must stay whole: the documents give way, and the query after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cenote.errors import InputTooLong
from cenote.inputs.tokenizer import TokenIds, Tokenizer
from cenote.protocol.requests import TruncationSide


@dataclass(frozen=True, slots=True)
class Framed:
    """What goes into one prompt, and how the prompt is written."""

    query: str
    documents: Sequence[str]
    write: Callable[[str, Sequence[str]], str]


def fitted(
    framed: Framed, encode: Callable[[str], TokenIds], max_tokens: int, tokenizer: Tokenizer, side: TruncationSide
) -> TokenIds:
    """The tokens of the prompt, no more than that: what is cut is text, never the frame."""

    def with_documents(documents: Sequence[str]) -> TokenIds:
        return encode(framed.write(framed.query, documents))

    def with_query(texts: Sequence[str]) -> TokenIds:
        return encode(framed.write(texts[0], nothing))

    nothing = [""] * len(framed.documents)
    ids = _shortened(framed.documents, with_documents, max_tokens, tokenizer, side)
    if ids is None:
        ids = _shortened([framed.query], with_query, max_tokens, tokenizer, side)
    if ids is None:
        length = len(encode(framed.write("", nothing)))
        raise InputTooLong(
            f"the template around query and document has {length} tokens by itself, and {max_tokens} are left for all "
            "of it; allow more tokens",
            param="input_tokens",
            value=length,
        )
    return ids


def shares(lengths: Sequence[int], room: int) -> list[int]:
    """How much of each stays when the longest give way first: as even as can be, and all of the room used."""
    kept, left = [0] * len(lengths), max(0, room)
    for rank, place in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        kept[place] = min(lengths[place], left // (len(lengths) - rank))
        left -= kept[place]
    return kept


def _shortened(
    texts: Sequence[str],
    read: Callable[[Sequence[str]], TokenIds],
    max_tokens: int,
    tokenizer: Tokenizer,
    side: TruncationSide,
) -> TokenIds | None:
    """What is read when the texts are as long as they may be; None when nothing of them is short enough."""
    located = tokenizer.locate(texts)
    room = sum(len(each.token_ids) for each in located)
    ids = read(texts)
    while len(ids) > max_tokens:
        # tokens at a cut may be others than before: then a little more must go
        room -= len(ids) - max_tokens
        if room < 0:
            return None
        kept = shares([len(each.token_ids) for each in located], room)
        ids = read(
            [
                _part(text, each.starts, each.ends, keep, side)
                for text, each, keep in zip(texts, located, kept, strict=True)
            ]
        )
    return ids


def _part(text: str, starts: TokenIds, ends: TokenIds, keep: int, side: TruncationSide) -> str:
    """The first `keep` tokens of a text, or the last when the left side is cut."""
    if keep >= len(ends):
        return text
    if keep == 0:
        return ""
    return text[: int(ends[keep - 1])] if side == "right" else text[int(starts[len(starts) - keep]) :]

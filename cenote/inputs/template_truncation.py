"""Texts inside a frame that must stay whole: the documents give way, and the query after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cenote.errors import InputTooLong
from cenote.inputs.tokenizer import TokenIds, Tokenizer
from cenote.protocol.params import TruncationSide


@dataclass(frozen=True, slots=True)
class TemplatedTexts:
    """What goes into one prompt, and how the prompt is written."""

    query: str
    documents: Sequence[str]
    render: Callable[[str, Sequence[str]], str]


def truncate_to_fit(
    templated: TemplatedTexts,
    encode: Callable[[str], TokenIds],
    max_tokens: int,
    tokenizer: Tokenizer,
    truncation_side: TruncationSide,
) -> TokenIds:
    """The tokens of the prompt, no more than that: what is cut is text, never the frame."""

    def with_documents(documents: Sequence[str]) -> TokenIds:
        return encode(templated.render(templated.query, documents))

    def with_query(texts: Sequence[str]) -> TokenIds:
        return encode(templated.render(texts[0], nothing))

    nothing = [""] * len(templated.documents)
    ids = _truncate_texts(templated.documents, with_documents, max_tokens, tokenizer, truncation_side)
    if ids is None:
        ids = _truncate_texts([templated.query], with_query, max_tokens, tokenizer, truncation_side)
    if ids is None:
        length = len(encode(templated.render("", nothing)))
        raise InputTooLong(
            f"the template around query and document has {length} tokens by itself, and {max_tokens} are left for all "
            "of it; allow more tokens",
            param="input_tokens",
            value=length,
        )
    return ids


def split_budget(lengths: Sequence[int], budget: int) -> list[int]:
    """How much of each stays when the longest give way first: as even as can be, and all of the room used."""
    kept, left = [0] * len(lengths), max(0, budget)
    for rank, place in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        kept[place] = min(lengths[place], left // (len(lengths) - rank))
        left -= kept[place]
    return kept


def _truncate_texts(
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], TokenIds],
    max_tokens: int,
    tokenizer: Tokenizer,
    truncation_side: TruncationSide,
) -> TokenIds | None:
    """What is read when the texts are as long as they may be; None when nothing of them is short enough."""
    located = tokenizer.encode_with_offsets(texts)
    room = sum(len(each.token_ids) for each in located)
    ids = encode(texts)
    while len(ids) > max_tokens:
        # tokens at a cut may be others than before: then a little more must go
        room -= len(ids) - max_tokens
        if room < 0:
            return None
        kept = split_budget([len(each.token_ids) for each in located], room)
        ids = encode(
            [
                _crop_to_tokens(text, each.starts, each.ends, keep, truncation_side)
                for text, each, keep in zip(texts, located, kept, strict=True)
            ]
        )
    return ids


def _crop_to_tokens(
    text: str, starts: TokenIds, ends: TokenIds, num_tokens: int, truncation_side: TruncationSide
) -> str:
    """The first `keep` tokens of a text, or the last when the left side is cut."""
    if num_tokens >= len(ends):
        return text
    if num_tokens == 0:
        return ""
    return (
        text[: int(ends[num_tokens - 1])]
        if truncation_side == "right"
        else text[int(starts[len(starts) - num_tokens]) :]
    )

"""Truncate the texts inside a score template and keep the template: first the documents, then the query."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from cenote.errors import InputTooLong
from cenote.inputs.limits import split_budget
from cenote.inputs.tokenizer import TokenIds, Tokenizer
from cenote.protocol.params import TruncationSide


class TemplatedTexts(msgspec.Struct, frozen=True):
    """Query and documents of one prompt, and the function that renders the prompt."""

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
    """Return the token ids of the prompt, at most `max_tokens`. Only texts are truncated, never the template."""

    def encode_documents(documents: Sequence[str]) -> TokenIds:
        return encode(templated.render(templated.query, documents))

    def encode_query(texts: Sequence[str]) -> TokenIds:
        return encode(templated.render(texts[0], empty_documents))

    empty_documents = [""] * len(templated.documents)
    ids = _truncate_texts(templated.documents, encode_documents, max_tokens, tokenizer, truncation_side)
    if ids is None:
        ids = _truncate_texts([templated.query], encode_query, max_tokens, tokenizer, truncation_side)
    if ids is None:
        length = len(encode(templated.render("", empty_documents)))
        raise InputTooLong(
            f"the score template without query and documents has {length} tokens, but the limit is {max_tokens}; "
            "raise truncate_prompt_tokens",
            param="input_tokens",
            value=length,
        )
    return ids


def _truncate_texts(
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], TokenIds],
    max_tokens: int,
    tokenizer: Tokenizer,
    truncation_side: TruncationSide,
) -> TokenIds | None:
    """Truncate the texts until the prompt fits and return its ids; None if it does not fit with empty texts."""
    encodings = tokenizer.encode_with_offsets(texts)
    lengths = [len(encoding.token_ids) for encoding in encodings]
    budget = sum(lengths)
    ids = encode(texts)
    while len(ids) > max_tokens:
        # cutting a text may change the tokens at its end: repeat with a smaller budget until the prompt fits
        budget -= len(ids) - max_tokens
        if budget < 0:
            return None
        kept = split_budget(lengths, budget)
        ids = encode(
            [
                crop_to_tokens(text, encoding.starts, encoding.ends, num_tokens, truncation_side)
                for text, encoding, num_tokens in zip(texts, encodings, kept, strict=True)
            ]
        )
    return ids


def crop_to_tokens(
    text: str, starts: TokenIds, ends: TokenIds, num_tokens: int, truncation_side: TruncationSide
) -> str:
    """Return the text of the first `num_tokens` tokens, or of the last ones if truncated on the left."""
    if num_tokens >= len(ends):
        return text
    if num_tokens == 0:
        return ""
    return (
        text[: int(ends[num_tokens - 1])]
        if truncation_side == "right"
        else text[int(starts[len(starts) - num_tokens]) :]
    )

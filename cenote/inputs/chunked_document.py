"""Plan a document in chunks: one sequence, with the first token of every chunk marked."""

from __future__ import annotations

import numpy as np

from cenote.errors import BadRequest, InputTooLong
from cenote.inputs.sequence_builder import BuildFn, RenderOptions, SequenceBuilder
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.input_types import ChunkedDocument


def plan_document(
    builder: SequenceBuilder,
    document: ChunkedDocument,
    options: RenderOptions,
    texts: dict[str, None],
    *,
    exclude_prompt: bool,
) -> BuildFn:
    """Add the chunks to `texts` and return the function that builds the sequence.

    Each chunk is tokenized by itself: no token belongs to two chunks. The special tokens and the prompt at the start
    belong to the first chunk, those at the end to the last one. A document is never truncated, since chunks would be
    left without tokens.
    """
    limits, prompt = options.limits, options.prompt
    whole = options._replace(max_tokens=None)
    chunks = [(prompt or "") + document.chunks[0], *document.chunks[1:]]
    for chunk in chunks:
        try:
            builder.crop_text(chunk, whole)  # checks the length
        except InputTooLong as error:
            raise InputTooLong(
                f"late_chunking computes all chunks of a document at once: one has {len(chunk)} characters, the limit "
                f"is {limits.max_tokens} tokens, and they are not truncated; send a part of the document per request",
                param=error.param,
                value=error.value,
            ) from None
    texts.update(dict.fromkeys(chunks))
    excluded_prompt = prompt if exclude_prompt else None
    if excluded_prompt:
        texts[excluded_prompt] = None
    max_tokens = limits.max_tokens if options.max_tokens is None else options.max_tokens

    def build(ids: dict[str, TokenIds]) -> TokenizedInput:
        parts = [ids[chunk] for chunk in chunks]
        lengths = list(map(len, parts))
        if 0 in lengths:
            raise BadRequest(
                f"chunk {lengths.index(0)} of the document has no tokens; leave out chunks without text", param="input"
            )
        prompt_ids = ids[excluded_prompt] if excluded_prompt else None
        tokenized = builder.build_single(np.concatenate(parts), whole, prompt_ids)
        if (length := len(tokenized.token_ids)) > max_tokens:
            raise InputTooLong(
                f"late_chunking computes all chunks of a document at once: {len(parts)} chunks have {length} tokens, "
                f"the limit is {max_tokens}, and they are not truncated; send fewer chunks per request",
                param="input_tokens",
                value=length,
            )
        num_first = builder.tokenizer.find_template(options.tokenization).prefix.size
        tokenized.row_mask = np.zeros(length, dtype=bool)
        tokenized.row_mask[0] = True
        tokenized.row_mask[num_first + np.cumsum(lengths[:-1], dtype=np.int64)] = True
        return tokenized

    return build

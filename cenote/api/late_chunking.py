"""Embeddings of the chunks of one document, computed in one sequence; matrices of token vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
from msgspec import Meta

from cenote.api.encoding import QuantizedType
from cenote.api.replies import Reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import EncodingFields
from cenote.api.vector_response import VectorFormat, check_metadata_limit, vector_reply
from cenote.errors import BadRequest
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.late_chunking import (
    check_late_chunking,
    describe_chunks,
    get_offsets,
    make_document,
    split_document,
)
from cenote.protocol.params import LateChunkingParams, PoolingParams
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult, PoolResultBatch

if TYPE_CHECKING:
    from cenote.api.embedding_types import EmbeddingTypeFields


async def late_chunking_reply(
    body: EmbeddingTypeFields,
    request: PoolRequest,
    context: RequestContext,
    vector_format: VectorFormat,
    dtype: QuantizedType | None,
) -> Reply:
    """Return an entry for every chunk, with its place in the text if the server has split it."""
    check_fields(body, len(request.inputs))
    context.check_num_items(len(request.inputs), "input")
    if body.chunk_size is not None:
        if isinstance(text := request.inputs[0], str):
            context.check_num_items(-(-len(text) // body.chunk_size), "chunks of input")  # before they are made
        document = split_document(text, body.chunk_size)
    else:
        document = make_document(request.inputs)
    context.check_num_items(len(document.chunks), "chunks of input")
    check_metadata_limit(body, len(document.chunks))
    params = replace(cast("PoolingParams | None", request.params) or PoolingParams(), late_chunking=True)
    (result,) = await context.pool(request.replace(inputs=[document], params=params))
    results = cast("Sequence[PoolResult]", split_result(result, document))
    if body.chunk_size is None:
        return await vector_reply(context, body, results, vector_format, dtype)
    places = [{"start": start, "end": end} for start, end in get_offsets(document.chunks)]
    return await vector_reply(context, body, results, vector_format, dtype, places)


class TokenChunks(msgspec.Struct, forbid_unknown_fields=True):
    """Late chunking with chunks of a fixed number of tokens, as in vLLM."""

    chunk_size: Annotated[
        int, Meta(ge=1, le=2**63 - 1, description="Tokens per chunk, with the special tokens of the text.")
    ]


TOKEN_CHUNKS_DOC = Meta(
    description="Return the mean of every chunk of this many tokens, of the task token_embed, and where the chunks are."
)


async def token_matrix_reply(
    body: EncodingFields,
    request: PoolRequest,
    context: RequestContext,
    vector_format: VectorFormat,
    token_chunks: TokenChunks | None,
) -> Reply:
    """Return a matrix for every input: vectors of its tokens, or of chunks of a number of tokens and their places."""
    if body.encoding_format not in (None, "float"):
        raise BadRequest(
            f"encoding_format={body.encoding_format} is not supported here: matrices of token vectors are returned as "
            "float; /pooling has other formats",
            param="encoding_format",
        )
    if token_chunks is None:
        return await vector_reply(context, body, await context.pool(request), vector_format)
    late = LateChunkingParams(token_chunks.chunk_size)
    params = replace(cast("PoolingParams | None", request.params) or PoolingParams(), late_chunking_params=late)
    request = request.replace(params=params)
    check_late_chunking(request)
    context.auto_truncates = False
    results = await context.pool(request)
    prompt = select_prompt(request, context.model_info).prompt
    places = []
    for text, result in zip(cast("Sequence[str]", request.inputs), results, strict=True):
        tokenized = await context.tokenize(
            (prompt or "") + text,
            add_special_tokens=request.tokenization.add_special_tokens,
            return_offsets=True,
        )
        metadata = describe_chunks(text, prompt, late.chunk_size, result.num_tokens, tokenized.offsets)
        places.append({"late_chunking": metadata})
    return await vector_reply(context, body, results, vector_format, chunk_fields=places)


def check_fields(body: EmbeddingTypeFields, num_inputs: int) -> None:
    """Raise for fields that say nothing about a chunk."""
    if body.return_token_counts:
        raise BadRequest(
            "return_token_counts is not supported with late_chunking: the chunks are one sequence, whose tokens are "
            "in usage",
            param="return_token_counts",
        )
    if body.chunk_size is None:
        return
    if body.late_chunking is False:
        raise BadRequest("chunk_size is for late chunking; leave out late_chunking=false", param="chunk_size")
    if num_inputs != 1:
        raise BadRequest(
            f"chunk_size splits one text into chunks, got {num_inputs} inputs; send a request for each", param="input"
        )
    if body.encoding_format in ("bytes", "bytes_only"):
        raise BadRequest(
            f"encoding_format={body.encoding_format} has no place for the start and end of chunks; use float or base64",
            param="encoding_format",
        )


def split_result(result: PoolResult, document: ChunkedDocument) -> PoolResultBatch:
    """Return the rows of a document as results of its chunks; the token counts are those of the document."""
    rows = result.data
    assert len(rows) == len(document.chunks), "one row for each chunk"
    return PoolResultBatch([msgspec.structs.replace(result, data=row) for row in rows], rows)

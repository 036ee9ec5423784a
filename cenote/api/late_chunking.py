"""Embeddings of the chunks of one document, computed in one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from cenote.api.embedding_types import EmbeddingTypeFields
from cenote.api.encoding import QuantizedType
from cenote.api.replies import Reply
from cenote.api.request_context import RequestContext
from cenote.api.vector_response import VectorFormat, check_metadata_limit, vector_reply
from cenote.errors import BadRequest
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.late_chunking import get_offsets, make_document, split_document
from cenote.protocol.params import PoolingParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult, PoolResultBatch


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
        document = split_document(request.inputs[0], body.chunk_size)
    else:
        document = make_document(request.inputs)
    context.check_num_items(len(document.chunks), "chunks of input")
    check_metadata_limit(body, len(document.chunks))
    params = replace(cast("PoolingParams | None", request.params) or PoolingParams(), late_chunking=True)
    (result,) = await context.pool(replace(request, inputs=[document], params=params))
    results = cast("Sequence[PoolResult]", split_result(result, document))
    offsets = get_offsets(document.chunks) if body.chunk_size is not None else None
    return await vector_reply(context, body, results, vector_format, dtype, offsets)


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
    return PoolResultBatch([replace(result, data=row) for row in rows], rows)

"""Voyage AI API: embeddings of the chunks of documents, each in the context of the others, by late chunking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

import msgspec

from cenote.api.dialects.dialect import Need, Route
from cenote.api.dialects.text_requests import check_not_empty, make_embed_request, make_truncation
from cenote.api.encoding import QuantizedType
from cenote.api.late_chunking import split_result
from cenote.api.plain_route import Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import INPUT_TYPE_DOC, Dimensions, doc
from cenote.api.vector_response import encode_results
from cenote.errors import BadRequest
from cenote.protocol.input_types import Input
from cenote.protocol.late_chunking import DEFAULT_CHUNK_SIZE, make_document, split_document
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import PoolingParams
from cenote.protocol.results import PoolResult

contextualized_routes = Routes(Route)


class VoyageFields(msgspec.Struct, kw_only=True):
    """Options of embeddings."""

    model: str | None = None
    input_type: Annotated[str | None, INPUT_TYPE_DOC] = None
    output_dimension: Annotated[Dimensions | None, doc("Embedding size, for Matryoshka models.")] = None
    output_dtype: Annotated[QuantizedType | Literal["float"] | None, doc("dtype of the values. Default: float.")] = None
    encoding_format: Annotated[
        Literal["base64", "float"] | None, doc("base64: that of the values in output_dtype. Default: numbers.")
    ] = None


class ContextualizedBody(VoyageFields, kw_only=True):
    inputs: Annotated[list[list[str]], doc("The chunks of each document in order; a query is a list of one text.")]
    enable_auto_chunking: Annotated[
        bool | None, doc("Split documents, each given as one text, into chunks; they are returned as text.")
    ] = None
    chunk_size: Annotated[int | None, doc("Refused: chunks have at most 1000 characters.")] = None
    chunk_overlap: Annotated[int | None, doc("Refused unless 0: chunks do not overlap.")] = None


class ChunkEmbedding(msgspec.Struct, omit_defaults=True):
    index: int
    embedding: list[float] | str
    object: str = msgspec.field(default_factory=lambda: "embedding")
    text: str | None = None  # of a chunk that the server has split off


class DocumentEmbeddings(msgspec.Struct):
    index: int
    data: list[ChunkEmbedding]
    object: str = "list"


class TotalTokens(msgspec.Struct):
    total_tokens: int


class ContextualizedAnswer(msgspec.Struct):
    object: str
    data: list[DocumentEmbeddings]
    model: str
    usage: TotalTokens


def supports_late_chunking(model_info: ModelInfo) -> bool:
    return "embed" in model_info.tasks and model_info.pooling == "MEAN"


@contextualized_routes.add(
    "/v1/contextualizedembeddings",
    reply_type=ContextualizedAnswer,
    needs=Need("Contextualized Embeddings (MEAN pooling)", supports_late_chunking),
    example={"inputs": [["Berlin is the capital of Germany.", " It lies on the Spree."]]},
)
async def contextualized_embeddings(body: ContextualizedBody, context: RequestContext) -> dict[str, Any]:
    """Compute an embedding for each chunk of every document in the context of its other chunks."""
    check_not_empty(body.inputs, "inputs")
    context.check_num_items(len(body.inputs), "inputs")
    if body.chunk_size is not None or body.chunk_overlap:
        raise BadRequest(
            f"chunk_size and chunk_overlap are not supported: chunks have at most {DEFAULT_CHUNK_SIZE} characters and "
            "do not overlap; leave them out, or send the chunks",
            param="chunk_size",
        )
    if body.enable_auto_chunking:
        texts = [check_single(item, at) for at, item in enumerate(body.inputs)]
        context.check_num_items(sum(-(-len(text) // DEFAULT_CHUNK_SIZE) for text in texts), "chunks of inputs")
        documents = [split_document(text, DEFAULT_CHUNK_SIZE) for text in texts]
    else:
        documents = [make_document(item, f"inputs[{at}]") for at, item in enumerate(body.inputs)]
    context.check_num_items(sum(len(document.chunks) for document in documents), "inputs")
    request = make_embed_request(
        cast("list[Input]", documents),
        make_truncation(False, context),
        dimensions=body.output_dimension,
        input_type=body.input_type,
    )
    params = cast("PoolingParams | None", request.params) or PoolingParams()
    found = await context.pool(request.replace(params=replace(params, late_chunking=True)))
    pairs = zip(found, documents, strict=True)
    results = cast(
        "Sequence[PoolResult]", [row for result, document in pairs for row in split_result(result, document)]
    )
    encoded = iter(await encode_results(results, body.output_dtype, is_base64=body.encoding_format == "base64"))
    data = [
        {
            "object": "list",
            "index": index,
            "data": [
                {"object": "embedding", "index": position, "embedding": next(encoded)}
                | ({"text": chunk} if body.enable_auto_chunking else {})
                for position, chunk in enumerate(document.chunks)
            ],
        }
        for index, document in enumerate(documents)
    ]
    usage = TotalTokens(context.num_tokens)
    return {"object": "list", "data": data, "model": context.model, "usage": usage}


def check_single(chunks: list[str], index: int) -> str:
    if len(chunks) != 1:
        raise BadRequest(
            f"enable_auto_chunking takes one text for each document, inputs[{index}] has {len(chunks)}",
            param=f"inputs[{index}]",
        )
    return chunks[0]

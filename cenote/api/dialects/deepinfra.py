"""DeepInfra inference API: embeddings, or scores of pairs, by the keys of the body."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cenote.api.dialects.dialect import EMBEDDINGS, SCORES, Dialect, Need, Route
from cenote.api.dialects.text_requests import (
    check_not_empty,
    make_embed_request,
    make_truncation,
    score,
)
from cenote.api.plain_route import Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import Dimensions, doc
from cenote.api.vector_response import encode_results
from cenote.errors import BadRequest, Unsupported

routes = Routes(Route)


class InferenceBody(msgspec.Struct, kw_only=True):
    """Texts to embed in `inputs`, or pairs to score in `queries` and `documents`."""

    inputs: str | list[str] | None = None
    normalize: Annotated[bool | None, doc("Normalise embeddings. Default: as the model is configured.")] = None
    dimensions: Annotated[Dimensions | None, doc("Embedding size, for Matryoshka models.")] = None
    queries: Annotated[list[str] | None, doc("One query for all documents, or one for each.")] = None
    documents: list[str] | None = None


class InferenceStatus(msgspec.Struct):
    status: str
    runtime_ms: int
    cost: float
    tokens_input: int
    tokens_generated: int = 0


class InferredEmbeddings(msgspec.Struct):
    embeddings: list[list[float]]
    input_tokens: int
    request_id: str
    inference_status: InferenceStatus


class InferredScores(msgspec.Struct):
    """Scores in the order of the documents."""

    scores: list[float]
    input_tokens: int
    request_id: str
    inference_status: InferenceStatus


@routes.add(
    ("/inference/{model}", "/v1/inference/{model}"),
    needs=Need("Inference", lambda model_info: EMBEDDINGS.is_met(model_info) or SCORES.is_met(model_info)),
    example={"queries": ["Who is old?"], "documents": ["The river is old.", "The fish is red."]},
)
async def infer(body: InferenceBody, context: RequestContext) -> InferredEmbeddings | InferredScores:
    """Compute embeddings of inputs, or scores of queries and documents, in DeepInfra's format."""
    if (body.inputs is None) == (body.documents is None):
        raise BadRequest("expected either inputs, or queries and documents", param="inputs")
    if body.inputs is not None:
        return await infer_embeddings(body, body.inputs, context)
    queries, documents = body.queries or [], body.documents or []
    check_not_empty(queries, "queries")
    if len(queries) not in (1, len(documents)):
        raise BadRequest(
            f"{len(queries)} queries and {len(documents)} documents; expected one query, or one for each document",
            param="queries",
        )
    if not SCORES.is_met(context.model_info):
        raise Unsupported(f"{context.model_info.name} cannot score queries and documents; use inputs", param="queries")
    if len(set(queries)) == 1:
        queries = queries[:1]  # clients repeat the query of a rerank request
    scores = await score(context, queries, documents, make_truncation(True, context))
    return InferredScores(scores, context.num_tokens, context.request_id, make_status(context))


async def infer_embeddings(body: InferenceBody, inputs: str | list[str], context: RequestContext) -> InferredEmbeddings:
    if not EMBEDDINGS.is_met(context.model_info):
        raise Unsupported(
            f"{context.model_info.name} computes no embeddings; use queries and documents", param="inputs"
        )
    texts = [inputs] if isinstance(inputs, str) else inputs
    check_not_empty(texts, "inputs")
    request = make_embed_request(
        texts, make_truncation(True, context), dimensions=body.dimensions, normalize=body.normalize
    )
    rows = await encode_results(await context.pool(request))
    usage = (context.num_tokens, context.request_id, make_status(context))
    return InferredEmbeddings(rows, *usage)  # type: ignore[arg-type]  # JSON already


def make_status(context: RequestContext) -> InferenceStatus:
    return InferenceStatus("succeeded", int(context.timing.inference_s * 1000), 0.0, context.num_tokens)


DEEPINFRA = Dialect("deepinfra", routes)

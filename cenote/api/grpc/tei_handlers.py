"""Handlers of the gRPC API of Text Embeddings Inference: messages to the requests of its HTTP routes, and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cenote.api.dialects import tei as dialect
from cenote.api.dialects.tei_fields import (
    TeiEmbedFields,
    TeiPredictBody,
    TeiRerankBody,
    TruncationFields,
    check_not_empty,
)
from cenote.api.dialects.tei_tokenize import iter_tokens
from cenote.api.dialects.text_requests import rank_best_first, score_as
from cenote.api.grpc import tei_pb2 as tei
from cenote.api.request_context import RequestContext
from cenote.errors import BadRequest
from cenote.protocol.input_types import Input
from cenote.protocol.params import Task
from cenote.protocol.prompt_selection import get_named_prompt
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import PoolResult
from cenote.version import __version__

MODEL_TYPES = {
    "embedding": tei.MODEL_TYPE_EMBEDDING,
    "classifier": tei.MODEL_TYPE_CLASSIFIER,
    "reranker": tei.MODEL_TYPE_RERANKER,
}

EmbedMessage = tei.EmbedRequest | tei.EmbedSparseRequest | tei.EmbedAllRequest
TruncatedMessage = (
    EmbedMessage | tei.PredictRequest | tei.PredictPairRequest | tei.RerankRequest | tei.RerankStreamRequest
)


async def info(request: tei.InfoRequest, context: RequestContext) -> tei.InfoResponse:
    """Return the model and the limits; 0 stands for limits that there are not."""
    model_info, settings = context.model_info, context.settings
    (model_type,) = dialect.describe_model_type(model_info)
    return tei.InfoResponse(
        version=__version__,
        model_id=model_info.root,
        model_dtype=model_info.dtype,
        model_type=MODEL_TYPES[model_type],
        max_concurrent_requests=settings.max_connections,
        max_input_length=model_info.max_model_len,
        max_client_batch_size=settings.max_request_items,
    )


async def embed(request: tei.EmbedRequest, context: RequestContext) -> tei.EmbedResponse:
    normalize = request.normalize if request.HasField("normalize") else True
    dimensions = request.dimensions if request.HasField("dimensions") else None
    if dimensions == 0:
        raise BadRequest("dimensions is 0; expected a number above 0", param="dimensions")
    result = await pool_text("embed", request, context, normalize=normalize, dimensions=dimensions)
    vector = result.data.tolist()
    return tei.EmbedResponse(embeddings=vector, metadata=make_metadata(context, len(request.inputs)))


async def embed_sparse(request: tei.EmbedSparseRequest, context: RequestContext) -> tei.EmbedSparseResponse:
    result = await pool_text("sparse_embed", request, context, normalize=None)
    values = [tei.SparseValue(index=int(index), value=value) for index, value in result.data.tolist()]
    return tei.EmbedSparseResponse(sparse_embeddings=values, metadata=make_metadata(context, len(request.inputs)))


async def embed_all(request: tei.EmbedAllRequest, context: RequestContext) -> tei.EmbedAllResponse:
    result = await pool_text("token_embed", request, context, normalize=False)
    rows = [tei.TokenEmbedding(embeddings=row) for row in result.data.tolist()]
    return tei.EmbedAllResponse(token_embeddings=rows, metadata=make_metadata(context, len(request.inputs)))


async def pool_text(
    task: Task,
    request: EmbedMessage,
    context: RequestContext,
    *,
    normalize: bool | None,
    dimensions: int | None = None,
) -> PoolResult:
    fields = TeiEmbedFields(
        prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
        dimensions=dimensions,
        **read_truncation(request, context),
    )
    inputs: list[Input] = [request.inputs]
    check_not_empty(inputs, "inputs")
    (result,) = await dialect.pool(task, fields, inputs, context, normalize=normalize)
    return result


async def predict(request: tei.PredictRequest, context: RequestContext) -> tei.PredictResponse:
    check_not_empty([request.inputs], "inputs")
    return await predict_texts(request, [request.inputs], context)


async def predict_pair(request: tei.PredictPairRequest, context: RequestContext) -> tei.PredictResponse:
    texts = list(request.inputs)
    if len(texts) != 2:
        raise BadRequest(f"inputs has {len(texts)} texts; expected 2, which form a pair", param="inputs")
    check_not_empty(texts, "inputs")
    return await predict_texts(request, texts, context)


async def predict_texts(
    request: tei.PredictRequest | tei.PredictPairRequest, texts: list[str], context: RequestContext
) -> tei.PredictResponse:
    body = TeiPredictBody(
        inputs=[texts],
        raw_scores=request.raw_scores,
        **read_truncation(request, context),
    )
    (predictions,) = await dialect.predict(body, context)
    return tei.PredictResponse(
        predictions=[tei.Prediction(score=item.score, label=item.label) for item in predictions],
        metadata=make_metadata(context, sum(map(len, texts))),
    )


async def rerank_stream(requests: Sequence[tei.RerankStreamRequest], context: RequestContext) -> tei.RerankResponse:
    """Rank the pairs of query and text of all messages; the first one tells the kind of scores, and to return texts."""
    if not requests:
        raise BadRequest("the stream has no messages; expected one for each text", param="text")
    for index, message in enumerate(requests):
        if not message.query:
            raise BadRequest(f"message {index} of the stream has no query; every message needs one", param="query")
    if requests[0].return_text:
        await context.hold_echo()
    scores = await score_messages(requests, context)
    texts = [message.text if requests[0].return_text else None for message in requests]
    num_chars = sum(len(message.query) + len(message.text) for message in requests)
    return tei.RerankResponse(
        ranks=[tei.Rank(index=index, text=texts[index], score=scores[index]) for index in rank_best_first(scores)],
        metadata=make_metadata(context, num_chars),
    )


async def score_messages(messages: Sequence[tei.RerankStreamRequest], context: RequestContext) -> list[float]:
    """Score the query and the text of every message; those that are truncated alike are one request."""
    indices_by_truncation: dict[tuple[Any, ...], list[int]] = {}
    for index, message in enumerate(messages):
        key = tuple(read_truncation(message, context).items())
        indices_by_truncation.setdefault(key, []).append(index)
    scores = [0.0] * len(messages)
    for key, indices in indices_by_truncation.items():
        fields = TruncationFields(**dict(key))
        queries = [messages[index].query for index in indices]
        request = ScoreRequest(
            queries=queries[:1] if len(set(queries)) == 1 else queries,
            documents=[messages[index].text for index in indices],
            tokenization=fields.make_tokenization_params(context),
        )
        results = await score_as(request, messages[0].raw_scores, context)
        for index, result in zip(indices, results, strict=True):
            scores[index] = result.score
    return scores


async def rerank(request: tei.RerankRequest, context: RequestContext) -> tei.RerankResponse:
    texts = list(request.texts)
    body = TeiRerankBody(
        query=request.query,
        texts=texts,
        raw_scores=request.raw_scores,
        return_text=request.return_text,
        **read_truncation(request, context),
    )
    ranks = await dialect.rerank(body, context)
    return tei.RerankResponse(
        ranks=[tei.Rank(index=rank.index, text=rank.text, score=rank.score) for rank in ranks],
        metadata=make_metadata(context, len(request.query) + sum(map(len, texts))),
    )


async def tokenize(request: tei.EncodeRequest, context: RequestContext) -> tei.EncodeResponse:
    check_not_empty([request.inputs], "inputs")
    name = request.prompt_name if request.HasField("prompt_name") else None
    prompt = "" if name is None else get_named_prompt(name, context.model_info)
    response = tei.EncodeResponse()
    async for tokens in iter_tokens(prompt + request.inputs, context, add_special_tokens=request.add_special_tokens):
        response.tokens.extend(
            tei.SimpleToken(id=token.id, text=token.text, special=token.special, start=token.start, stop=token.stop)
            for token in tokens
        )
    return response


async def decode(request: tei.DecodeRequest, context: RequestContext) -> tei.DecodeResponse:
    ids = list(request.ids)
    check_not_empty([ids], "ids")
    return tei.DecodeResponse(text=await context.detokenize(ids, skip_special_tokens=request.skip_special_tokens))


def read_truncation(request: TruncatedMessage, context: RequestContext) -> dict[str, Any]:
    """Return the fields of the HTTP routes; the message cannot say that texts are not cut if the server does it always.

    The side is right unless the message says left.
    """
    is_left = request.truncation_direction == tei.TRUNCATION_DIRECTION_LEFT
    truncates = request.truncate or context.settings.auto_truncate
    return {"truncate": truncates, "truncation_direction": "left" if is_left else "right"}


def make_metadata(context: RequestContext, num_chars: int) -> tei.Metadata:
    timing = context.timing
    total_s = time.monotonic() - timing.received_at
    times = (total_s, timing.tokenize_s, timing.queue_s, timing.inference_s)
    total, tokenization, queue, inference = (max(0, round(seconds * 1e9)) for seconds in times)
    return tei.Metadata(
        compute_chars=num_chars,
        compute_tokens=context.num_tokens,
        total_time_ns=total,
        tokenization_time_ns=tokenization,
        queue_time_ns=queue,
        inference_time_ns=inference,
    )

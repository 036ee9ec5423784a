"""Listwise scoring: the model encodes a query and all its documents in one prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cenote.errors import PoolingError, Unsupported
from cenote.protocol.input_types import ListwiseInput, ScoreInput
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import PoolResult, ScoreResult
from cenote.scoring.scorer import (
    ScoreResults,
    ScoringContext,
    ScoringModel,
    make_pool_request,
    register_scorer,
    to_array,
)
from cenote.scoring.separate_encoding import Array, cosine_similarity

# upper bounds on the bytes that the prompt template adds: once, and per document
TEMPLATE_BYTES, TEMPLATE_BYTES_PER_DOCUMENT = 1000, 50


@register_scorer("listwise")
async def score_listwise(request: ScoreRequest, context: ScoringContext, model: ScoringModel) -> ScoreResults:
    """Encode one query with all documents in as few prompts as fit, or each of several queries with its document."""
    instruction = request.template_variables.get("instruction") or request.template_variables.get("instruct")
    queries, documents = _check_texts(request.queries), _check_texts(request.documents)
    is_single_query = len(queries) == 1
    if is_single_query:
        blocks = await _split_blocks(ListwiseInput(queries[0], documents, instruction), request, context, model)
    else:
        blocks = [range(index, index + 1) for index in range(len(documents))]
    inputs = [
        ListwiseInput(queries[0 if is_single_query else block[0]], [documents[index] for index in block], instruction)
        for block in blocks
    ]
    try:
        results = await context.pool(make_pool_request(request, "token_embed", inputs))
    except PoolingError as error:
        if error.index is not None:
            error.index = blocks[error.index][0]
        raise
    query = None
    if is_single_query:
        query = _merge_query_embeddings([result for result in results if isinstance(result, PoolResult)])
    scores: list[ScoreResult | PoolingError] = []
    for block, result in zip(blocks, results, strict=True):
        scores += [result] * len(block) if isinstance(result, PoolingError) else _to_score_results(result, query)
    return scores


def _check_texts(inputs: Sequence[ScoreInput]) -> list[str]:
    texts = [item for item in inputs if isinstance(item, str)]
    if len(texts) < len(inputs):
        raise Unsupported("The JinaForRanking model only supports text as input.", param="content")
    return texts


async def _split_blocks(
    listwise_input: ListwiseInput, request: ScoreRequest, context: ScoringContext, model: ScoringModel
) -> list[range]:
    """Split the documents into consecutive blocks that fit one prompt each."""
    requested, num_documents = request.tokenization.truncate_prompt_tokens, len(listwise_input.documents)
    max_tokens = model.max_model_len if requested is None or requested == -1 else min(requested, model.max_model_len)
    if _count_bytes(listwise_input) <= max_tokens or (await context.count_tokens([listwise_input]))[0] <= max_tokens:
        return [range(num_documents)]
    single_inputs = [
        ListwiseInput(listwise_input.query, [document], listwise_input.instruction)
        for document in listwise_input.documents
    ]
    template_tokens, *lengths = await context.count_tokens(
        [ListwiseInput(listwise_input.query, [], listwise_input.instruction), *single_inputs]
    )
    blocks, start, num_tokens = [], 0, template_tokens
    for index, length in enumerate(lengths):
        # its number in the prompt may have more digits than in a prompt with one document
        added_tokens = length - template_tokens + len(str(num_documents))
        if index > start and num_tokens + added_tokens > max_tokens:
            blocks.append(range(start, index))
            start, num_tokens = index, template_tokens
        num_tokens += added_tokens
    return [*blocks, range(start, num_documents)]


def _count_bytes(listwise_input: ListwiseInput) -> int:
    """Return an upper bound on the tokens of the prompt, cheaper than tokenizing."""
    texts = (listwise_input.query, listwise_input.query, listwise_input.instruction or "", *listwise_input.documents)
    template_bytes = TEMPLATE_BYTES + TEMPLATE_BYTES_PER_DOCUMENT * len(listwise_input.documents)
    return template_bytes + sum(len(text.encode(errors="replace")) for text in texts)


def _merge_query_embeddings(results: Sequence[PoolResult]) -> Array | None:
    """Average the embeddings of a query that was encoded in several prompts, weighted by each block's best score.

    This is what the model's authors do when the documents do not fit one prompt.
    """
    if not results:
        return None
    blocks = [to_array(result.data) for result in results]
    best = [(1 + cosine_similarity(rows[:-1], rows[-1:])).max() / 2 for rows in blocks]
    weights = np.maximum(best, 1e-6)
    merged: Array = (weights[:, None] * np.stack([rows[-1] for rows in blocks])).sum(axis=0) / weights.sum()
    return merged


def _to_score_results(result: PoolResult, query: Array | None) -> list[ScoreResult | PoolingError]:
    """Score the documents of one prompt; the last row of the result is the query's."""
    rows = to_array(result.data)
    scores = cosine_similarity(rows[:-1], rows[-1:] if query is None else query[None])
    return [ScoreResult.from_pool(score, result) for score in scores.tolist()]

"""Score documents by reading all of them with their query in one prompt, where each is seen beside the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cenote.errors import PoolingError, Unsupported
from cenote.protocol.input_types import ListwiseInput, ScoreInput
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import PoolResult, ScoreResult
from cenote.scoring.bi_encoder import cosine_similarity
from cenote.scoring.scorer import ScoringContext, ScoringModel, make_pool_request, register_scorer

# more bytes than a prompt has around its texts: in all, and for each document
TEMPLATE_BYTES, TEMPLATE_BYTES_PER_DOCUMENT = 1000, 50


@register_scorer("listwise")
async def score_listwise(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel
) -> list[ScoreResult | PoolingError]:
    """One query is read with all its documents at once, each of several queries with its own document."""
    instruction = request.template_variables.get("instruction") or request.template_variables.get("instruct")
    queries, documents = _check_texts(request.queries), _check_texts(request.documents)
    shared = len(queries) == 1
    if shared:
        blocks = await _split_blocks(ListwiseInput(queries[0], documents, instruction), request, context, model)
    else:
        blocks = [range(place, place + 1) for place in range(len(documents))]
    rankings = [
        ListwiseInput(queries[0 if shared else block[0]], [documents[place] for place in block], instruction)
        for block in blocks
    ]
    try:
        answers = await context.pool(make_pool_request(request, "token_embed", rankings))
    except PoolingError as error:
        if error.index is not None:
            error.index = blocks[error.index][0]
        raise
    query = _merge_query_embeddings([each for each in answers if isinstance(each, PoolResult)]) if shared else None
    scores: list[ScoreResult | PoolingError] = []
    for block, answer in zip(blocks, answers, strict=True):
        scores += [answer] * len(block) if isinstance(answer, PoolingError) else _to_score_results(answer, query)
    return scores


def _check_texts(inputs: Sequence[ScoreInput]) -> list[str]:
    texts = [side for side in inputs if isinstance(side, str)]
    if len(texts) < len(inputs):
        raise Unsupported("The JinaForRanking model only supports text as input.", param="content")
    return texts


async def _split_blocks(
    listwise_input: ListwiseInput, request: ScoreRequest, context: ScoringContext, model: ScoringModel
) -> list[range]:
    """Which documents share a prompt: all, or as many one after the other as the model can read."""
    wanted, number = request.tokenization.truncate_prompt_tokens, len(listwise_input.documents)
    max_tokens = model.max_model_len if wanted is None or wanted == -1 else min(wanted, model.max_model_len)
    if _count_bytes(listwise_input) <= max_tokens or (await context.count_tokens([listwise_input]))[0] <= max_tokens:
        return [range(number)]
    alone = [
        ListwiseInput(listwise_input.query, [document], listwise_input.instruction)
        for document in listwise_input.documents
    ]
    frame, *lengths = await context.count_tokens(
        [ListwiseInput(listwise_input.query, [], listwise_input.instruction), *alone]
    )
    blocks, start, tokens = [], 0, frame
    for place, length in enumerate(lengths):
        more = length - frame + len(str(number))  # its number in the prompt may have more digits than when alone
        if place > start and tokens + more > max_tokens:
            blocks.append(range(start, place))
            start, tokens = place, frame
        tokens += more
    return [*blocks, range(start, number)]


def _count_bytes(listwise_input: ListwiseInput) -> int:
    """No fewer than its prompt has tokens; counting bytes is cheap."""
    texts = (listwise_input.query, listwise_input.query, listwise_input.instruction or "", *listwise_input.documents)
    around = TEMPLATE_BYTES + TEMPLATE_BYTES_PER_DOCUMENT * len(listwise_input.documents)
    return around + sum(len(text.encode(errors="replace")) for text in texts)


def _merge_query_embeddings(results: Sequence[PoolResult]) -> Tensor | None:
    """One row for a query that was read in several prompts: those with better documents weigh more.

    So do the model's authors where documents do not fit one prompt.
    """
    if not results:
        return None
    rows = [answer.data.float() for answer in results]
    best = torch.stack([(1 + cosine_similarity(each[:-1], each[-1:])).amax() / 2 for each in rows]).clamp(min=1e-6)
    return (best[:, None] * torch.stack([each[-1] for each in rows])).sum(dim=0) / best.sum()


def _to_score_results(result: PoolResult, query: Tensor | None) -> list[ScoreResult | PoolingError]:
    """The rows of an answer are those of its documents and then that of the query."""
    rows = result.data.float()
    scores = cosine_similarity(rows[:-1], rows[-1:] if query is None else query[None])
    read = (result.token_ids, result.num_tokens, result.num_input_tokens, result.is_input_count_exact)
    return [ScoreResult(score, *read) for score in scores.tolist()]

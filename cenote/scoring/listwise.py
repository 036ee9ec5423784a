"""Score documents by reading all of them with their query in one prompt, where each is seen beside the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cenote.errors import PoolingError, Unsupported
from cenote.protocol.input_types import Ranking, Side
from cenote.protocol.requests import Pooled, Scored, ScoreRequest
from cenote.scoring.bi_encoder import cosine
from cenote.scoring.scorer import Resources, Scorable, asked, scorer

# more bytes than a prompt has around its texts: in all, and for each document
FRAME_BYTES, FRAME_BYTES_EACH = 1000, 50


@scorer("listwise")
async def listwise(request: ScoreRequest, engine: Resources, model: Scorable) -> list[Scored | PoolingError]:
    """One query is read with all its documents at once, each of several queries with its own document."""
    instruction = request.variables.get("instruction") or request.variables.get("instruct")
    queries, documents = _texts(request.queries), _texts(request.documents)
    shared = len(queries) == 1
    if shared:
        blocks = await _blocks(Ranking(queries[0], documents, instruction), request, engine, model)
    else:
        blocks = [range(place, place + 1) for place in range(len(documents))]
    rankings = [
        Ranking(queries[0 if shared else block[0]], [documents[place] for place in block], instruction)
        for block in blocks
    ]
    try:
        answers = await engine.pool(asked(request, "token_embed", rankings))
    except PoolingError as error:
        if error.index is not None:
            error.index = blocks[error.index][0]
        raise
    query = _query_of_all([each for each in answers if isinstance(each, Pooled)]) if shared else None
    scores: list[Scored | PoolingError] = []
    for block, answer in zip(blocks, answers, strict=True):
        scores += [answer] * len(block) if isinstance(answer, PoolingError) else _scored(answer, query)
    return scores


def _texts(sides: Sequence[Side]) -> list[str]:
    texts = [side for side in sides if isinstance(side, str)]
    if len(texts) < len(sides):
        raise Unsupported("The JinaForRanking model only supports text as input.", param="content")
    return texts


async def _blocks(whole: Ranking, request: ScoreRequest, engine: Resources, model: Scorable) -> list[range]:
    """Which documents share a prompt: all, or as many one after the other as the model can read."""
    wanted, number = request.tokenization.truncate_prompt_tokens, len(whole.documents)
    max_tokens = model.max_model_len if wanted is None or wanted == -1 else min(wanted, model.max_model_len)
    if _num_bytes(whole) <= max_tokens or (await engine.measure([whole]))[0] <= max_tokens:
        return [range(number)]
    alone = [Ranking(whole.query, [document], whole.instruction) for document in whole.documents]
    frame, *lengths = await engine.measure([Ranking(whole.query, [], whole.instruction), *alone])
    blocks, start, tokens = [], 0, frame
    for place, length in enumerate(lengths):
        more = length - frame + len(str(number))  # its number in the prompt may have more digits than when alone
        if place > start and tokens + more > max_tokens:
            blocks.append(range(start, place))
            start, tokens = place, frame
        tokens += more
    return [*blocks, range(start, number)]


def _num_bytes(ranking: Ranking) -> int:
    """No fewer than its prompt has tokens; counting bytes is cheap."""
    texts = (ranking.query, ranking.query, ranking.instruction or "", *ranking.documents)
    around = FRAME_BYTES + FRAME_BYTES_EACH * len(ranking.documents)
    return around + sum(len(text.encode(errors="replace")) for text in texts)


def _query_of_all(answers: Sequence[Pooled]) -> Tensor | None:
    """One row for a query that was read in several prompts: those with better documents weigh more.

    So do the model's authors where documents do not fit one prompt.
    """
    if not answers:
        return None
    rows = [answer.data.float() for answer in answers]
    best = torch.stack([(1 + cosine(each[:-1], each[-1:])).amax() / 2 for each in rows]).clamp(min=1e-6)
    return (best[:, None] * torch.stack([each[-1] for each in rows])).sum(dim=0) / best.sum()


def _scored(answer: Pooled, query: Tensor | None) -> list[Scored | PoolingError]:
    """The rows of an answer are those of its documents and then that of the query."""
    rows = answer.data.float()
    scores = cosine(rows[:-1], rows[-1:] if query is None else query[None])
    read = (answer.token_ids, answer.num_tokens, answer.num_input_tokens, answer.input_tokens_exact)
    return [Scored(score, *read) for score in scores.tolist()]

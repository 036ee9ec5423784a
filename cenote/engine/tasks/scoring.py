"""Scores of pairs: what a scorer asks for, from an engine that answers awaiting callers or blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from cenote.engine.request_state import PoolResults
from cenote.errors import BadRequest
from cenote.inputs.content_parts import join_text_parts
from cenote.inputs.pairs import check_score_template_kwargs
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenizer import TruncatedText
from cenote.protocol.input_types import ContentParts, Input, ScoreInput
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import ScoreResult
from cenote.scoring.scorer import (
    ScoreResults,
    ScoringContext,
    ScoringModel,
    broadcast_queries,
    check_pair_counts,
    select_scorer,
)
from cenote.utils.async_utils import run_coroutine_sync

# a request, and for each of its inputs the rows of a query to compare it with
PoolAsync = Callable[[PoolRequest, Sequence[Tensor] | None], Awaitable[PoolResults]]
PoolBlocking = Callable[[PoolRequest, Sequence[Tensor] | None], PoolResults]


@dataclass(frozen=True, slots=True)
class ScoringService:
    model: ScoringModel
    renderer: Renderer
    has_role_formats: bool  # the model reads queries and documents in different ways

    async def score(self, request: ScoreRequest, pool: PoolAsync) -> ScoreResults:
        """A score for every pair, in the order of the documents."""

        async def measure(inputs: Sequence[Input]) -> list[int]:
            return await asyncio.to_thread(self._count_tokens, inputs)

        request, lost = await asyncio.to_thread(self._truncate_inputs, request)
        return _add_truncated_tokens(await self._run_scorer(request, pool, measure, asyncio.to_thread), lost)

    def score_sync(
        self, request: ScoreRequest, pool: Callable[[PoolRequest, Sequence[Tensor] | None], PoolResults]
    ) -> ScoreResults:
        async def at_once(part: PoolRequest, against: Sequence[Tensor] | None) -> PoolResults:
            return pool(part, against)

        async def measure(inputs: Sequence[Input]) -> list[int]:
            return self._count_tokens(inputs)

        async def beside(scores: Callable[[], ScoreResults]) -> ScoreResults:
            return scores()

        request, lost = self._truncate_inputs(request)
        return _add_truncated_tokens(run_coroutine_sync(self._run_scorer(request, at_once, measure, beside)), lost)

    async def _run_scorer(
        self,
        request: ScoreRequest,
        pool: PoolAsync,
        count_tokens: Callable[[Sequence[Input]], Awaitable[list[int]]],
        run_in_thread: Callable[[Callable[[], ScoreResults]], Awaitable[ScoreResults]],
    ) -> ScoreResults:
        async def alone(part: PoolRequest) -> PoolResults:
            return await pool(self._without_prompts(part), None)

        async def match(part: PoolRequest, queries: Sequence[Tensor]) -> PoolResults:
            return await pool(self._without_prompts(part), queries)

        resources = ScoringContext(alone, match, count_tokens, run_in_thread)
        return await select_scorer(request, self.model)(request, resources, self.model)

    def _without_prompts(self, request: PoolRequest) -> PoolRequest:
        """Texts that are compared get no prompt before them, unless the model marks what is a query and what is not."""
        return request if self.has_role_formats else replace(request, prompt="", role=None)

    def _count_tokens(self, inputs: Sequence[Input]) -> list[int]:
        return [len(self.renderer.tokenize(item)) for item in inputs]

    def _truncate_inputs(self, request: ScoreRequest) -> tuple[ScoreRequest, list[int]]:
        """Checked, and texts cut to their limits; and the tokens that each pair lost by that."""
        check_pair_counts(request)
        check_score_template_kwargs(request.template_kwargs)
        began = time.monotonic()
        queries = self._truncate(request.queries, "max_tokens_per_query", request.max_tokens_per_query)
        documents = self._truncate(request.documents, "max_tokens_per_doc", request.max_tokens_per_doc)
        lost = [
            query.num_truncated_tokens + document.num_truncated_tokens
            for query, document in zip(broadcast_queries(queries, len(documents)), documents, strict=True)
        ]
        prepared = replace(
            request,
            queries=[query.text for query in queries],
            documents=[document.text for document in documents],
        )
        request.timing.tokenize_s += time.monotonic() - began
        return prepared, lost

    def _truncate(self, inputs: Sequence[ScoreInput], name: str, limit: int) -> list[TruncatedText]:
        longest = self.model.max_model_len
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise BadRequest(f"{name} must be a non-negative integer", param=name, value=limit)
        if limit >= longest:
            raise BadRequest(f"{name} ({limit}) must be less than max_model_len ({longest}).", param=name)
        if self.renderer.multimodal is None:
            inputs = [side if isinstance(side, str) else self._join_text(side) for side in inputs]
        if not limit:
            return [TruncatedText(side, 0) for side in inputs]
        # what has images is read as it is
        cuts = iter(self.renderer.tokenizer.truncate_texts([side for side in inputs if isinstance(side, str)], limit))
        return [next(cuts) if isinstance(side, str) else TruncatedText(side, 0) for side in inputs]

    def _join_text(self, parts: ContentParts) -> str:
        return join_text_parts(parts.content, parts.param_path, self.renderer.architecture)


def _add_truncated_tokens(scores: ScoreResults, num_truncated: Sequence[int]) -> ScoreResults:
    """What was cut off before tokenizing belongs to what was given."""
    for scored, num_lost in zip(scores, num_truncated, strict=True):
        if isinstance(scored, ScoreResult):
            scored.num_input_tokens += num_lost
    return scores

"""Scores of pairs: what a scorer asks for, from an engine that answers awaiting callers or blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from cenote.engine.request_state import Answers
from cenote.errors import BadRequest
from cenote.inputs.content_parts import plain_text
from cenote.inputs.pairs import check_template_kwargs
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenizer import Cut
from cenote.protocol.input_types import Input, Parts, Side
from cenote.protocol.requests import PoolRequest, Scored, ScoreRequest
from cenote.scoring.scorer import Resources, Scorable, Scores, broadcast, check_pairing, choose

Result = TypeVar("Result")
# a request, and for each of its inputs the rows of a query to compare it with
Pool = Callable[[PoolRequest, Sequence[Tensor] | None], Awaitable[Answers]]
PoolSync = Callable[[PoolRequest, Sequence[Tensor] | None], Answers]


@dataclass(frozen=True, slots=True)
class Comparing:
    scorable: Scorable
    renderer: Renderer
    marks_roles: bool  # the model reads queries and documents in different ways

    async def score(self, request: ScoreRequest, pool: Pool) -> Scores:
        """A score for every pair, in the order of the documents."""

        async def measure(inputs: Sequence[Input]) -> list[int]:
            return await asyncio.to_thread(self._lengths, inputs)

        request, lost = await asyncio.to_thread(self._prepared, request)
        return _with_lost(await self._scored(request, pool, measure, asyncio.to_thread), lost)

    def score_sync(
        self, request: ScoreRequest, pool: Callable[[PoolRequest, Sequence[Tensor] | None], Answers]
    ) -> Scores:
        async def at_once(part: PoolRequest, against: Sequence[Tensor] | None) -> Answers:
            return pool(part, against)

        async def measure(inputs: Sequence[Input]) -> list[int]:
            return self._lengths(inputs)

        async def beside(scores: Callable[[], Scores]) -> Scores:
            return scores()

        request, lost = self._prepared(request)
        return _with_lost(finished(self._scored(request, at_once, measure, beside)), lost)

    async def _scored(
        self,
        request: ScoreRequest,
        pool: Pool,
        measure: Callable[[Sequence[Input]], Awaitable[list[int]]],
        aside: Callable[[Callable[[], Scores]], Awaitable[Scores]],
    ) -> Scores:
        async def alone(part: PoolRequest) -> Answers:
            return await pool(self._as_it_is(part), None)

        async def match(part: PoolRequest, queries: Sequence[Tensor]) -> Answers:
            return await pool(self._as_it_is(part), queries)

        resources = Resources(alone, match, measure, aside)
        return await choose(request, self.scorable)(request, resources, self.scorable)

    def _as_it_is(self, request: PoolRequest) -> PoolRequest:
        """Texts that are compared get no prompt before them, unless the model marks what is a query and what is not."""
        return request if self.marks_roles else replace(request, prompt="", role=None)

    def _lengths(self, inputs: Sequence[Input]) -> list[int]:
        return [len(self.renderer.tokenize(item)) for item in inputs]

    def _prepared(self, request: ScoreRequest) -> tuple[ScoreRequest, list[int]]:
        """Checked, and texts cut to their limits; and the tokens that each pair lost by that."""
        check_pairing(request)
        check_template_kwargs(request.template_kwargs)
        began = time.monotonic()
        queries = self._cut(request.queries, "max_tokens_per_query", request.max_tokens_per_query)
        documents = self._cut(request.documents, "max_tokens_per_doc", request.max_tokens_per_doc)
        lost = [
            query.num_lost + document.num_lost
            for query, document in zip(broadcast(queries, len(documents)), documents, strict=True)
        ]
        prepared = replace(
            request,
            queries=[query.text for query in queries],
            documents=[document.text for document in documents],
        )
        request.timing.tokenize += time.monotonic() - began
        return prepared, lost

    def _cut(self, sides: Sequence[Side], name: str, limit: int) -> list[Cut]:
        longest = self.scorable.max_model_len
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise BadRequest(f"{name} must be a non-negative integer", param=name, value=limit)
        if limit >= longest:
            raise BadRequest(f"{name} ({limit}) must be less than max_model_len ({longest}).", param=name)
        if self.renderer.seeing is None:
            sides = [side if isinstance(side, str) else self._text(side) for side in sides]
        if not limit:
            return [Cut(side, 0) for side in sides]
        # what has images is read as it is
        cuts = iter(self.renderer.tokenizer.cut([side for side in sides if isinstance(side, str)], limit))
        return [next(cuts) if isinstance(side, str) else Cut(side, 0) for side in sides]

    def _text(self, side: Parts) -> str:
        return plain_text(side.content, side.where, self.renderer.architecture)


def finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never has to wait, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise RuntimeError("a scorer waited for something other than the engine")


def _with_lost(scores: Scores, lost: Sequence[int]) -> Scores:
    """What was cut off before tokenizing belongs to what was given."""
    for scored, num_lost in zip(scores, lost, strict=True):
        if isinstance(scored, Scored):
            scored.num_input_tokens += num_lost
    return scores

"""Score pairs of queries and documents with the scorer that fits the model and the request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.errors import BadRequest
from cenote.inputs.content_parts import join_text_parts
from cenote.inputs.formatted_pairs import FormattedPair, FormattedText
from cenote.inputs.renderer import Renderer
from cenote.inputs.template_kwargs import check_template_kwargs
from cenote.inputs.tokenizer import TruncatedText
from cenote.protocol.input_types import Input, ScoreInput
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import ScoreResult
from cenote.scoring.scorer import (
    PoolResults,
    ScoreResults,
    ScoringContext,
    ScoringModel,
    broadcast_queries,
    check_pair_counts,
    select_scorer,
    to_array,
)


@dataclass(frozen=True, slots=True)
class ScoringService:
    """Check and truncate score requests, and run their scorer."""

    model: ScoringModel
    renderer: Renderer

    async def score(self, request: ScoreRequest, calls: EngineCalls) -> ScoreResults:
        """Return a score for every pair, in the order of the documents."""

        async def pool(part: PoolRequest) -> PoolResults:
            return await calls.pool(self._without_prompts(part))

        async def max_sim(part: PoolRequest, query_embeddings: Sequence[Any]) -> PoolResults:
            arrays = {id(rows): to_array(rows) for rows in query_embeddings}  # a query of several documents is one
            return await pool(part.replace(operands=[arrays[id(rows)] for rows in query_embeddings]))

        async def count_tokens(inputs: Sequence[Input]) -> list[int]:
            return await calls.run_in_thread(self._count_tokens, inputs)

        request, num_truncated = await calls.run_in_thread(self._truncate_inputs, request)
        context = ScoringContext(pool, max_sim, count_tokens, calls.run_in_thread)
        scores = await select_scorer(request, self.model)(request, context, self.model)
        return _add_truncated_tokens(scores, num_truncated)

    def _without_prompts(self, request: PoolRequest) -> PoolRequest:
        """Disable the default prompt for scored texts, unless the model formats queries and documents differently."""
        if self.model.has_role_formats:
            return request
        return request.replace(prompt="", role=request.role if self.model.has_routes else None)

    def _count_tokens(self, inputs: Sequence[Input]) -> list[int]:
        return [len(self.renderer.tokenize(item)) for item in inputs]

    def _truncate_inputs(self, request: ScoreRequest) -> tuple[ScoreRequest, list[int]]:
        """Check the request and truncate its texts to max_tokens_per_*; also return the tokens removed per pair."""
        check_pair_counts(request)
        check_template_kwargs(request.template_kwargs, "score")
        started_at = time.monotonic()
        request = self._join_text_parts(request)
        request, query_parts, document_parts = self._split_formatted(request)
        queries = self._truncate(request.queries, query_parts, "max_tokens_per_query", request.max_tokens_per_query)
        documents = self._truncate(request.documents, document_parts, "max_tokens_per_doc", request.max_tokens_per_doc)
        num_truncated = [
            query.num_truncated_tokens + document.num_truncated_tokens
            for query, document in zip(broadcast_queries(queries, len(documents)), documents, strict=True)
        ]
        truncated = request.replace(
            queries=[query.text for query in queries],
            documents=[document.text for document in documents],
        )
        request.timing.tokenize_s += time.monotonic() - started_at
        return truncated, num_truncated

    def _join_text_parts(self, request: ScoreRequest) -> ScoreRequest:
        """Return the request of a text-only model with its content parts joined to texts."""
        if self.model.reads_images:
            return request

        def join(item: ScoreInput) -> str:
            if isinstance(item, str):
                return item
            return join_text_parts(item.content, item.param_path, self.renderer.settings.architecture)

        return request.replace(
            queries=[join(query) for query in request.queries], documents=list(map(join, request.documents))
        )

    def _split_formatted(
        self, request: ScoreRequest
    ) -> tuple[ScoreRequest, list[FormattedText | None], list[FormattedText | None]]:
        """Return the parts of queries and of documents that already contain the score template; None for the others.

        A query of several documents is repeated in the request if the documents split it differently.
        """
        queries = broadcast_queries(request.queries, len(request.documents))
        pairs = [
            self._split_pair(query, document, request.template)
            for query, document in zip(queries, request.documents, strict=True)
        ]
        query_parts = [None if pair is None else pair.query for pair in pairs]
        document_parts = [None if pair is None else pair.document for pair in pairs]
        if len(set(query_parts)) == 1:
            query_parts = query_parts[: len(request.queries)]
        else:
            request = request.replace(queries=queries)
        return request, query_parts, document_parts

    def _split_pair(self, query: ScoreInput, document: ScoreInput, template: str | None) -> FormattedPair | None:
        pair_format = self.renderer.pair_format
        if pair_format is None or template is not None or not isinstance(query, str) or not isinstance(document, str):
            return None
        return pair_format.split(query, document)

    def _truncate(
        self, inputs: Sequence[ScoreInput], formatted: Sequence[FormattedText | None], name: str, limit: int
    ) -> list[TruncatedText]:
        """Truncate texts; of a text that contains the score template, only the text itself."""
        max_model_len = self.model.max_model_len
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise BadRequest(f"{name} must be a non-negative integer", param=name, value=limit)
        if limit >= max_model_len:
            raise BadRequest(f"{name} ({limit}) must be less than max_model_len ({max_model_len}).", param=name)
        if not limit:
            return [TruncatedText(item, 0) for item in inputs]
        plain = [item if parts is None else parts.text for item, parts in zip(inputs, formatted, strict=True)]
        # inputs with images are not truncated
        texts = iter(self.renderer.tokenizer.truncate_texts([item for item in plain if isinstance(item, str)], limit))
        truncated = [next(texts) if isinstance(item, str) else TruncatedText(item, 0) for item in plain]
        return [
            TruncatedText(parts.join(item.text), item.num_truncated_tokens)
            if parts is not None and isinstance(item.text, str)
            else item
            for item, parts in zip(truncated, formatted, strict=True)
        ]


def _add_truncated_tokens(scores: ScoreResults, num_truncated: Sequence[int]) -> ScoreResults:
    """Add the tokens removed before tokenization to num_input_tokens, which counts the input as it was sent."""
    for result, num_tokens in zip(scores, num_truncated, strict=True):
        if isinstance(result, ScoreResult):
            result.num_input_tokens += num_tokens
    return scores

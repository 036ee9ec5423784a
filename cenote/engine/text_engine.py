"""TextEngine: the methods of Engine that are computed where texts are tokenized, around `pool`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

from cenote.engine.engine_executors import EngineExecutors
from cenote.engine.preprocessing.image_workers import ImageWorkerPool
from cenote.engine.preprocessing.sub_requests import (
    CAPACITY_POLL_S,
    MAX_IN_FLIGHT_BYTES,
    SubRequest,
    run_sub_requests,
)
from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.engine.tasks.text_tasks import TextTasks
from cenote.errors import PoolingError
from cenote.protocol.input_types import Conversation, Input, TextPair, compute_input_size, compute_text_size
from cenote.protocol.requests import EntityRequest, PoolRequest, ScoreRequest
from cenote.protocol.results import EntityResult, PoolResult, ScoreResult, TokenizeResult
from cenote.utils.async_utils import run_inline
from cenote.utils.busy_stages import BusyStages

# requests up to this size take less time than waking up a thread
MAX_INLINE_CHARS, MAX_INLINE_INPUTS = 8192, 64


def is_small(inputs: Sequence[object], num_chars: int) -> bool:
    """Whether a request is rendered by its caller; a template of the request may write a text of any length."""
    return (
        num_chars <= MAX_INLINE_CHARS
        and len(inputs) <= MAX_INLINE_INPUTS
        and not any(isinstance(item, Conversation | TextPair) and item.template for item in inputs)
    )


PoolReady = Callable[[PoolRequest], Awaitable[list[PoolResult | PoolingError]]]


class TextParts(Protocol):
    """What a process needs of a model to handle its texts."""

    tasks: TextTasks
    image_workers: ImageWorkerPool
    busy_stages: BusyStages
    executors: EngineExecutors


class TextEngine(ABC):
    _num_image_bytes = 0  # of the requests with images that are in flight

    @abstractmethod
    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]: ...

    @abstractmethod
    async def get_text_parts(self, deadline_at: float, num_chars: int) -> TextParts:
        """Wait until a model with so many characters of work can be used; raise if that takes too long."""

    async def _pool_in_parts(
        self, request: PoolRequest, workers: ImageWorkerPool, pool_ready: PoolReady
    ) -> list[PoolResult | PoolingError]:
        """Pool a request; one with images in parts, so that only those of a few inputs are in memory."""
        if not (sub_requests := workers.split(request)):
            return await pool_ready(request)

        async def pool_part(sub_request: SubRequest, ready: PoolRequest) -> list[PoolResult | PoolingError]:
            num_bytes = sum(map(compute_input_size, ready.inputs))
            # all parts of a large request at once could fill the memory; one always fits
            while sub_request.offset and self._num_image_bytes > max(0, MAX_IN_FLIGHT_BYTES - num_bytes):
                await asyncio.sleep(CAPACITY_POLL_S)
            self._num_image_bytes += num_bytes
            try:
                return await pool_ready(ready.replace(num_chars=compute_text_size(ready.inputs)))
            finally:
                self._num_image_bytes -= num_bytes

        return await run_sub_requests(sub_requests, workers.start_preprocess, pool_part, request.timing)

    async def score(self, request: ScoreRequest) -> list[ScoreResult | PoolingError]:
        """Return a score for every pair, in the order of the documents."""
        num_chars = sum(map(compute_input_size, chain(request.queries, request.documents)))
        texts = await self.get_text_parts(request.deadline_at, num_chars)
        return await texts.tasks.score(request, self._make_calls(texts, request.documents, num_chars))

    async def entities(self, request: EntityRequest) -> list[EntityResult]:
        """Return the entities of every text, in the order of the texts."""
        inputs = request.pool_request.inputs
        num_chars = sum(map(compute_input_size, inputs))
        texts = await self.get_text_parts(request.pool_request.deadline_at, num_chars)
        return await texts.tasks.find_entities(request, self._make_calls(texts, inputs, num_chars))

    def _make_calls(self, texts: TextParts, inputs: Sequence[object], num_chars: int) -> EngineCalls:
        is_inline = is_small(inputs, num_chars)
        return EngineCalls(self.pool, run_inline if is_inline else texts.executors.scoring.make_runner())

    async def tokenize(
        self,
        prompt: Input,
        *,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
        return_offsets: bool = False,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> TokenizeResult:
        """Return the token ids of a prompt, of any length or up to `max_tokens`; offsets only of a text."""
        num_chars = compute_input_size(prompt)
        texts = await self.get_text_parts(0.0, num_chars)
        prompt = await texts.image_workers.preprocess_input(prompt, mm_processor_kwargs or {})

        def tokenize() -> TokenizeResult:
            with texts.busy_stages.track("tokenizer"):
                return texts.tasks.tokenize(prompt, add_special_tokens, return_token_strs, return_offsets, max_tokens)

        return await texts.executors.select_tokenizer(compute_input_size(prompt)).run(tokenize)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        texts = await self.get_text_parts(0.0, len(token_ids))
        executor = texts.executors.select_tokenizer(len(token_ids))
        return await executor.run(texts.tasks.renderer.tokenizer.detokenize, token_ids, skip_special_tokens)

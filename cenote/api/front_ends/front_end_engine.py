"""FrontEndEngine: what a front-end computes of the methods of Engine itself, around what engine processes pool."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from cenote.api.front_ends.availability import Availability
from cenote.api.front_ends.text_model import TextModel, TextModelCache
from cenote.api.front_ends.token_client import MAX_INLINE_CHARS, MAX_INLINE_INPUTS
from cenote.engine.preprocessing.sub_requests import (
    CAPACITY_POLL_S,
    MAX_IN_FLIGHT_BYTES,
    SubRequest,
    run_sub_requests,
)
from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.errors import BadRequest, PoolingError
from cenote.inputs.listwise_prompt import join_listwise
from cenote.protocol.input_types import Input, compute_input_size, compute_inputs_size, compute_text_size
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import EntityRequest, PoolRequest, ScoreRequest
from cenote.protocol.results import EntityResult, PoolResult, ScoreResult, TokenizeResult
from cenote.utils.async_utils import run_inline


class FrontEndEngine(ABC):
    availability: Availability
    text_models: TextModelCache
    _num_image_bytes = 0  # of the requests with images that are in flight

    @property
    @abstractmethod
    def model_info(self) -> ModelInfo: ...

    @abstractmethod
    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]: ...

    @abstractmethod
    async def pool_rendered(self, request: PoolRequest, first: int | None = None) -> list[PoolResult | PoolingError]:
        """Pool a request whose images are preprocessed; `first`: the replica that computes it, if it is available."""

    async def _prepare(self, request: PoolRequest) -> PoolRequest:
        """Wait until an engine has told its model, and return the request as that model reads it."""
        if (texts := self.text_models.last) is None:
            texts = await self._get_text_model(request.deadline_at, compute_inputs_size(request.inputs))
        if not request.inputs:
            raise BadRequest("You must pass at least one prompt", param="input")
        if texts.tasks.scoring.model.preferred_score_type == "listwise":
            return join_listwise(request, self.model_info.architecture)
        return request

    async def _pool_prepared(self, request: PoolRequest, first: int | None = None) -> list[PoolResult | PoolingError]:
        """Pool a request; one with images in parts, so that only those of a few inputs are in memory."""
        assert self.text_models.last is not None, "it has prepared the request"
        workers = self.text_models.last.image_workers
        if not (sub_requests := workers.split(request)):
            return await self.pool_rendered(request, first)

        async def pool_part(sub_request: SubRequest, ready: PoolRequest) -> list[PoolResult | PoolingError]:
            num_bytes = sum(map(compute_input_size, ready.inputs))
            # all parts of a large request at once could fill the memory; one always fits
            while sub_request.offset and self._num_image_bytes > max(0, MAX_IN_FLIGHT_BYTES - num_bytes):
                await asyncio.sleep(CAPACITY_POLL_S)
            self._num_image_bytes += num_bytes
            try:
                return await self.pool_rendered(replace(ready, num_chars=compute_text_size(ready.inputs)), first)
            finally:
                self._num_image_bytes -= num_bytes

        return await run_sub_requests(sub_requests, workers.start_preprocess, pool_part, request.timing)

    async def score(self, request: ScoreRequest) -> list[ScoreResult | PoolingError]:
        num_chars = sum(map(compute_input_size, chain(request.queries, request.documents)))
        texts = await self._get_text_model(request.deadline_at, num_chars)
        return await texts.tasks.score(request, self._make_task_calls(len(request.documents), num_chars))

    async def entities(self, request: EntityRequest) -> list[EntityResult]:
        inputs = request.pool_request.inputs
        num_chars = sum(map(compute_input_size, inputs))
        texts = await self._get_text_model(request.pool_request.deadline_at, num_chars)
        return await texts.tasks.find_entities(request, self._make_task_calls(len(inputs), num_chars))

    async def _get_text_model(self, deadline_at: float, num_chars: int) -> TextModel:
        if self.text_models.last is None or not self.availability.is_available:
            await self.availability.wait(deadline_at, None, num_chars)
        assert self.text_models.last is not None, "RendererInfo comes before EngineReady"
        return self.text_models.last

    def _make_task_calls(self, num_inputs: int, num_chars: int) -> EngineCalls:
        """Return the calls of a task, which takes little time for few texts: waking up a thread takes longer."""
        is_small = num_inputs <= MAX_INLINE_INPUTS and num_chars <= MAX_INLINE_CHARS
        return EngineCalls(self.pool, run_inline if is_small else self.text_models.executors.scoring.make_runner())

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
        num_chars = compute_input_size(prompt)
        texts = await self._get_text_model(0.0, num_chars)
        prompt = await texts.image_workers.preprocess_input(prompt, mm_processor_kwargs or {})
        executor = self.text_models.executors.select_tokenizer(num_chars)
        return await executor.run(
            texts.tasks.tokenize, prompt, add_special_tokens, return_token_strs, return_offsets, max_tokens
        )

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        texts = await self._get_text_model(0.0, len(token_ids))
        executor = self.text_models.executors.select_tokenizer(len(token_ids))
        return await executor.run(texts.renderer.tokenizer.detokenize, token_ids, skip_special_tokens)

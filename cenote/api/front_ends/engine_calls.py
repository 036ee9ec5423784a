"""EngineCalls: the methods of Engine as calls that an engine process answers as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from cenote.api.front_ends.availability import Availability
from cenote.api.front_ends.rpc_call import RpcCall
from cenote.api.front_ends.text_model import TextModel, TextModelCache
from cenote.api.front_ends.token_client import MAX_INLINE_CHARS, MAX_INLINE_INPUTS
from cenote.api.wire.codec_requests import (
    encode_input,
    encode_pool,
    encode_token_ids,
)
from cenote.api.wire.codec_results import decode_pool_results
from cenote.api.wire.messages import (
    ArrayBytes,
    DetokenizeCall,
    DetokenizeResponse,
    MetricsResponse,
    PoolResponse,
    ProcessCall,
    ProcessResponse,
    TokenizeCall,
    TokenizeResponse,
    from_json,
    to_json,
)
from cenote.engine.tasks.engine_calls import EngineCalls as TaskCalls
from cenote.errors import PoolingError
from cenote.inputs.listwise_prompt import join_listwise
from cenote.protocol.input_types import Input, compute_input_size, compute_inputs_size
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest, Timing
from cenote.protocol.results import EntityResult, IOProcessorResult, PoolResult, ScoreResult, TokenizeResult
from cenote.utils.async_utils import run_inline

ResponseT = TypeVar(
    "ResponseT",
    PoolResponse,
    TokenizeResponse,
    DetokenizeResponse,
    ProcessResponse,
    MetricsResponse,
)


class EngineCalls(ABC):
    availability: Availability
    text_models: TextModelCache

    @property
    @abstractmethod
    def model_info(self) -> ModelInfo: ...

    @abstractmethod
    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]: ...

    @abstractmethod
    async def _call(
        self, call: RpcCall, expected: type[ResponseT], timing: Timing | None = None, deadline_at: float = 0.0
    ) -> tuple[ResponseT, ArrayBytes]:
        """Send a call until it is answered, or only once if it must not be repeated."""

    async def _join_lists(self, request: PoolRequest) -> PoolRequest:
        """Return a request whose texts are one input if the model reads lists of texts."""
        if not self.availability.is_available and self.text_models.last is None:
            await self.availability.wait(request.deadline_at, None, compute_inputs_size(request.inputs))
        texts = self.text_models.last
        if texts is not None and texts.tasks.scoring.model.preferred_score_type == "listwise":
            return join_listwise(request, self.model_info.architecture)
        return request

    async def _pool_in_engine(self, request: PoolRequest) -> list[PoolResult | PoolingError]:
        """Send the inputs as they are: the engine tokenizes them."""
        call = RpcCall(
            lambda call_id, isolated: encode_pool(call_id, request, isolated),
            has_indices=True,
            get_inputs=lambda: request.inputs,
            adapter=request.adapter,
        )
        response, array_bytes = await self._call(call, PoolResponse, request.timing, request.deadline_at)
        return decode_pool_results(response, array_bytes)

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
        if self.text_models.last is None:
            await self.availability.wait(deadline_at, None, num_chars)
        assert self.text_models.last is not None, "RendererInfo comes before EngineReady"
        return self.text_models.last

    def _make_task_calls(self, num_inputs: int, num_chars: int) -> TaskCalls:
        """Return the calls of a task, which takes little time for few texts: waking up a thread takes longer."""
        is_small = num_inputs <= MAX_INLINE_INPUTS and num_chars <= MAX_INLINE_CHARS
        return TaskCalls(self.pool, run_inline if is_small else self.text_models.executor.make_runner())

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
        kwargs = to_json(mm_processor_kwargs or {})

        def encode(call_id: int, isolated: Sequence[int]) -> TokenizeCall:
            flags = add_special_tokens, return_token_strs, return_offsets
            return TokenizeCall(encode_input(prompt), *flags, kwargs, max_tokens)

        response, _ = await self._call(RpcCall(encode), TokenizeResponse)
        return TokenizeResult(response.token_ids, response.token_strs, response.offsets)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        ids = encode_token_ids(token_ids)
        call = RpcCall(lambda call_id, isolated: DetokenizeCall(ids, skip_special_tokens))
        response, _ = await self._call(call, DetokenizeResponse)
        return response.text

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        data = to_json(request.data)

        def encode(call_id: int, isolated: Sequence[int]) -> ProcessCall:
            return ProcessCall(
                data,
                request.request_id,
                request.tokenization,
                request.scheduling,
                request.deadline_at,
            )

        # not sent twice: what a plugin does besides calling the model is not known
        call = RpcCall(encode, can_replay=False)
        response, _ = await self._call(call, ProcessResponse, request.timing, request.deadline_at)
        return IOProcessorResult(
            from_json(response.data), response.num_inputs, response.num_tokens, response.num_truncated
        )

"""EngineCalls: the methods of Engine as calls that an engine process answers as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from cenote.api.front_ends.rpc_call import RpcCall
from cenote.api.wire.codec_requests import (
    encode_entities,
    encode_input,
    encode_pool,
    encode_score,
    encode_token_ids,
    from_json,
    to_json,
)
from cenote.api.wire.codec_results import decode_entity_results, decode_pool_results, decode_score_results
from cenote.api.wire.messages import (
    ArrayBytes,
    DetokenizeCall,
    DetokenizeResponse,
    EntitiesResponse,
    MetricsResponse,
    PoolResponse,
    ProcessCall,
    ProcessResponse,
    ScoreResponse,
    TokenizeCall,
    TokenizeResponse,
)
from cenote.errors import PoolingError
from cenote.protocol.input_types import Input
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest, Timing
from cenote.protocol.results import EntityResult, IOProcessorResult, PoolResult, ScoreResult, TokenizeResult

ResponseT = TypeVar(
    "ResponseT",
    PoolResponse,
    ScoreResponse,
    EntitiesResponse,
    TokenizeResponse,
    DetokenizeResponse,
    ProcessResponse,
    MetricsResponse,
)


class EngineCalls(ABC):
    @abstractmethod
    async def _call(
        self, call: RpcCall, expected: type[ResponseT], timing: Timing | None = None, deadline_at: float = 0.0
    ) -> tuple[ResponseT, ArrayBytes]:
        """Send a call until it is answered, or only once if it must not be repeated."""

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
        return await self._score(request)

    async def _score(self, request: ScoreRequest, replica: int | None = None) -> list[ScoreResult | PoolingError]:
        call = RpcCall(
            lambda call_id, isolated: encode_score(call_id, request, isolated),
            get_inputs=lambda: chain(request.queries, request.documents),
            adapter=request.adapter,
            replica=replica,
        )
        response, _ = await self._call(call, ScoreResponse, request.timing, request.deadline_at)
        return decode_score_results(response)

    async def entities(self, request: EntityRequest) -> list[EntityResult]:
        return await self._entities(request)

    async def _entities(self, request: EntityRequest, replica: int | None = None) -> list[EntityResult]:
        pool_request = request.pool_request
        call = RpcCall(
            lambda call_id, isolated: encode_entities(call_id, request, isolated),
            get_inputs=lambda: pool_request.inputs,
            adapter=pool_request.adapter,
            replica=replica,
        )
        response, _ = await self._call(call, EntitiesResponse, pool_request.timing, pool_request.deadline_at)
        return decode_entity_results(response)

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

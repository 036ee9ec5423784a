"""Engine proxy of a front-end process: every call becomes a message to the engine process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from cenote.api.front_ends.channel import Channel
from cenote.api.front_ends.codec_requests import (
    encode_entities,
    encode_input,
    encode_pool,
    encode_score,
    encode_token_ids,
    from_json,
    to_json,
)
from cenote.api.front_ends.codec_results import (
    decode_entity_results,
    decode_error,
    decode_pool_results,
    decode_score_results,
)
from cenote.api.front_ends.messages import (
    Ack,
    Cancel,
    DetokenizeCall,
    DetokenizeResponse,
    EngineMessage,
    EntitiesResponse,
    ErrorResponse,
    FrontEndStats,
    LoadAdapter,
    MetricsCall,
    MetricsResponse,
    PoolResponse,
    ProcessCall,
    ProcessResponse,
    RpcRequest,
    RpcResponse,
    ScoreResponse,
    TokenizeCall,
    TokenizeResponse,
    UnloadAdapter,
)
from cenote.errors import BadRequest, EngineStopped, PoolingError
from cenote.protocol.input_types import Input
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest, Timing
from cenote.protocol.results import EntityResult, IOProcessorResult, PoolResult, ScoreResult, TokenizeResult
from cenote.utils.metrics import MetricFamily

ResponseT = TypeVar(
    "ResponseT",
    PoolResponse,
    ScoreResponse,
    EntitiesResponse,
    TokenizeResponse,
    DetokenizeResponse,
    ProcessResponse,
    Ack,
    MetricsResponse,
)

# a report is sent at this many replies; fewer wait for the next periodic report
REPLIES_PER_REPORT = 64


class RemoteEngine:
    """Implement Engine over a channel; the owner of the channel passes responses to `on_response`."""

    def __init__(self, model_info: ModelInfo, channel: Channel[EngineMessage]) -> None:
        self.model_info = model_info
        self.dead_error: PoolingError | None = None
        self._channel = channel
        self._is_disconnected = False
        self._call_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[tuple[RpcResponse, bytes | memoryview]]] = {}
        self._replies: list[tuple[str, str, int, float]] = []
        self._reported_in_flight = 0  # requests in flight, as last sent to the engine process

    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]:
        call = encode_pool(next(self._call_ids), request)
        response, array_bytes = await self._call(call, PoolResponse, request.timing)
        return decode_pool_results(response, array_bytes)

    async def score(self, request: ScoreRequest) -> list[ScoreResult | PoolingError]:
        response, _ = await self._call(encode_score(next(self._call_ids), request), ScoreResponse, request.timing)
        return decode_score_results(response)

    async def entities(self, request: EntityRequest) -> list[EntityResult]:
        response, _ = await self._call(
            encode_entities(next(self._call_ids), request), EntitiesResponse, request.pool_request.timing
        )
        return decode_entity_results(response)

    async def tokenize(
        self,
        prompt: Input,
        *,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> TokenizeResult:
        kwargs = to_json(mm_processor_kwargs or {})
        call = TokenizeCall(next(self._call_ids), encode_input(prompt), add_special_tokens, return_token_strs, kwargs)
        response, _ = await self._call(call, TokenizeResponse)
        return TokenizeResult(response.token_ids, response.token_strs)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        call = DetokenizeCall(next(self._call_ids), encode_token_ids(token_ids))
        response, _ = await self._call(call, DetokenizeResponse)
        return response.text

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        data = to_json(request.data)
        call = ProcessCall(
            next(self._call_ids), data, request.request_id, request.tokenization, request.priority, request.tenant
        )
        response, _ = await self._call(call, ProcessResponse, request.timing)
        return IOProcessorResult(
            from_json(response.data), response.num_inputs, response.num_tokens, response.num_truncated
        )

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        await self._call(LoadAdapter(next(self._call_ids), name, path, in_place), Ack)

    async def unload_adapter(self, name: str) -> None:
        await self._call(UnloadAdapter(next(self._call_ids), name), Ack)

    async def collect_metrics(self) -> list[MetricFamily]:
        self._send_stats()
        response, _ = await self._call(MetricsCall(next(self._call_ids)), MetricsResponse)
        return response.families

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Record an HTTP response; the engine process counts them, so that every front-end exposes the sum."""
        self._replies.append((handler, method, status, seconds))
        if len(self._replies) >= REPLIES_PER_REPORT:
            self._send_stats()

    def report_stats(self, num_in_flight: int) -> None:
        """Send the statistics to the engine process if they changed since the last report."""
        if self._replies or num_in_flight != self._reported_in_flight:
            self._reported_in_flight = num_in_flight
            self._send_stats()

    def on_response(self, response: RpcResponse, array_bytes: bytes | memoryview) -> None:
        future = self._pending.get(response.call_id)
        if future is not None and not future.done():  # else the client disconnected in the meantime
            future.set_result((response, array_bytes))

    def on_disconnect(self) -> None:
        """Fail all pending calls: the engine process has exited."""
        self._is_disconnected = True
        self.dead_error = self.dead_error or engine_exited_error()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(engine_exited_error())

    async def _call(
        self, request: RpcRequest, expected: type[ResponseT], timing: Timing | None = None
    ) -> tuple[ResponseT, bytes | memoryview]:
        if self._is_disconnected:
            raise engine_exited_error()
        future = asyncio.get_running_loop().create_future()
        self._pending[request.call_id] = future
        try:
            await self._channel.wait_writable()
            self._send(request)
            response, array_bytes = await future
        except asyncio.CancelledError:
            self._channel.send(Cancel(request.call_id))
            raise
        finally:
            del self._pending[request.call_id]
        if timing is not None and isinstance(
            response, PoolResponse | ScoreResponse | EntitiesResponse | ProcessResponse | ErrorResponse
        ):
            timing.queue_s, timing.tokenize_s, timing.inference_s = response.timing
        if isinstance(response, ErrorResponse):
            raise decode_error(response.error)
        assert isinstance(response, expected), f"got {type(response).__name__} for {type(request).__name__}"
        return response, array_bytes

    def _send(self, request: RpcRequest) -> None:
        try:
            self._channel.send(request)
        except (OverflowError, UnicodeEncodeError) as error:
            raise BadRequest(f"the request cannot be encoded for the engine process: {error}") from error

    def _send_stats(self) -> None:
        self._channel.send(FrontEndStats(self._replies, self._reported_in_flight))
        self._replies = []


def engine_exited_error() -> EngineStopped:
    return EngineStopped("the engine process exited before it responded")

"""The engine as a front-end process sees it: every call becomes a message to the process that has the model."""

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

# replies that are reported together; fewer wait for the next regular report
REPLIES_PER_REPORT = 64


class RemoteEngine:
    """Answers come through `answered`; whoever owns the channel calls it."""

    def __init__(self, model_info: ModelInfo, channel: Channel[EngineMessage]) -> None:
        self.model_info = model_info
        self.dead_error: PoolingError | None = None
        self._channel = channel
        self._is_disconnected = False
        self._call_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[tuple[RpcResponse, bytes | memoryview]]] = {}
        self._replies: list[tuple[str, str, int, float]] = []
        self._reported_in_flight = 0  # requests in flight, as the engine's process knows them

    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]:
        answer, numbers = await self._call(encode_pool(next(self._call_ids), request), PoolResponse, request.timing)
        return decode_pool_results(answer, numbers)

    async def score(self, request: ScoreRequest) -> list[ScoreResult | PoolingError]:
        answer, _ = await self._call(encode_score(next(self._call_ids), request), ScoreResponse, request.timing)
        return decode_score_results(answer)

    async def entities(self, request: EntityRequest) -> list[EntityResult]:
        answer, _ = await self._call(
            encode_entities(next(self._call_ids), request), EntitiesResponse, request.pool_request.timing
        )
        return decode_entity_results(answer)

    async def tokenize(
        self,
        prompt: Input,
        *,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> TokenizeResult:
        kwargs = to_json(mm_processor_kwargs or {})
        question = TokenizeCall(
            next(self._call_ids), encode_input(prompt), add_special_tokens, return_token_strs, kwargs
        )
        answer, _ = await self._call(question, TokenizeResponse)
        return TokenizeResult(answer.token_ids, answer.token_strs)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        answer, _ = await self._call(
            DetokenizeCall(next(self._call_ids), encode_token_ids(token_ids)), DetokenizeResponse
        )
        return answer.text

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        data = to_json(request.data)
        question = ProcessCall(
            next(self._call_ids), data, request.request_id, request.tokenization, request.priority, request.tenant
        )
        answer, _ = await self._call(question, ProcessResponse, request.timing)
        return IOProcessorResult(from_json(answer.data), answer.num_inputs, answer.num_tokens, answer.num_truncated)

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        await self._call(LoadAdapter(next(self._call_ids), name, path, in_place), Ack)

    async def unload_adapter(self, name: str) -> None:
        await self._call(UnloadAdapter(next(self._call_ids), name), Ack)

    async def collect_metrics(self) -> list[MetricFamily]:
        self._send_stats()
        answer, _ = await self._call(MetricsCall(next(self._call_ids)), MetricsResponse)
        return answer.families

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Counted in the engine's process, so that every front-end can show the sum."""
        self._replies.append((handler, method, status, seconds))
        if len(self._replies) >= REPLIES_PER_REPORT:
            self._send_stats()

    def report_stats(self, num_in_flight: int) -> None:
        """Tell what happened since the last time, if anything did."""
        if self._replies or num_in_flight != self._reported_in_flight:
            self._reported_in_flight = num_in_flight
            self._send_stats()

    def on_response(self, response: RpcResponse, array_bytes: bytes | memoryview) -> None:
        waiting = self._pending.get(response.call_id)
        if waiting is not None and not waiting.done():  # else the client went while the answer was on its way
            waiting.set_result((response, array_bytes))

    def on_disconnect(self) -> None:
        """The engine's process has gone: nobody who waits will hear from it."""
        self._is_disconnected = True
        self.dead_error = self.dead_error or engine_exited_error()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(engine_exited_error())

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
            answer, numbers = await future
        except asyncio.CancelledError:
            self._channel.send(Cancel(request.call_id))
            raise
        finally:
            del self._pending[request.call_id]
        if timing is not None and isinstance(
            answer, PoolResponse | ScoreResponse | EntitiesResponse | ProcessResponse | ErrorResponse
        ):
            timing.queue_s, timing.tokenize_s, timing.inference_s = answer.timing
        if isinstance(answer, ErrorResponse):
            raise decode_error(answer.error)
        assert isinstance(answer, expected), f"{type(answer).__name__} is no answer to {type(request).__name__}"
        return answer, numbers

    def _send(self, request: RpcRequest) -> None:
        try:
            self._channel.send(request)
        except (OverflowError, UnicodeEncodeError) as error:
            raise BadRequest(f"the request cannot be passed on to the engine: {error}") from error

    def _send_stats(self) -> None:
        self._channel.send(FrontEndStats(self._replies, self._reported_in_flight))
        self._replies = []


def engine_exited_error() -> EngineStopped:
    return EngineStopped("the engine's process ended before the answer came")

"""Engine proxy of a front-end: every call becomes a message to the engine process, over a link that may be replaced."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cenote.api.front_ends.token_client import NeedsEngine, TokenClient
from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_requests import (
    encode_entities,
    encode_input,
    encode_pool,
    encode_score,
    encode_token_ids,
    from_json,
    to_json,
)
from cenote.api.wire.codec_results import (
    decode_entity_results,
    decode_error,
    decode_model_info,
    decode_pool_results,
    decode_score_results,
    set_timing,
)
from cenote.api.wire.link_messages import EngineMessage
from cenote.api.wire.messages import (
    Ack,
    ArrayBytes,
    Cancel,
    DetokenizeCall,
    DetokenizeResponse,
    EngineDown,
    EngineReady,
    EntitiesResponse,
    ErrorResponse,
    LoadAdapter,
    MetricsCall,
    MetricsResponse,
    ModelInfoAck,
    ModelInfoUpdate,
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
from cenote.api.wire.token_messages import OptionsRegistered, RendererInfo, TokenErrors, TokenResults
from cenote.errors import BadRequest, EngineStopped, NotReady, PoolingError
from cenote.protocol.engine import EngineStatus
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


# by then the supervisor has noticed if the link was closed because the engine process has exited
RECONNECT_DELAY_S = 0.2


class RemoteEngine:
    """Implement Engine over a link to an engine process; `connect` is called again with the link to a new process."""

    model_info: ModelInfo  # set before `on_ready` is called, and kept while the engine restarts

    def __init__(
        self, on_ready: Callable[[], None] = lambda: None, on_link_lost: Callable[[], None] = lambda: None
    ) -> None:
        self.on_ready = on_ready  # called when the engine process at the other end of a link has loaded the model
        self.on_link_lost = on_link_lost  # called some time after a link was closed, whatever the reason
        self._is_closed = False
        self.status: EngineStatus = "loading"
        self.status_reason = ""
        self._reported_status: tuple[EngineStatus, str] = ("loading", "")  # by the supervisor
        self._channel: Channel[EngineMessage] | None = None
        self._token_client: TokenClient | None = None  # None: the engine tokenizes
        self._connecting: asyncio.Task[None] | None = None
        self._call_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[tuple[RpcResponse, ArrayBytes]]] = {}

    @property
    def dead_error(self) -> PoolingError | None:
        if self.status == "ready":
            return None
        if self.status in ("loading", "restarting"):
            state = "is being restarted" if self.status == "restarting" else "is loading the model"
            reason = f" ({self.status_reason})" if self.status_reason else ""
            error: PoolingError = NotReady(f"the engine {state}{reason}; retry shortly")
            error.http_message = f"the engine {state}; retry shortly"
        else:
            error = EngineStopped(f"the engine has {self.status}: {self.status_reason}")
            error.http_message = f"the engine has {self.status}; the reason is in the server log"
        return error

    async def connect(self, sock: socket.socket) -> None:
        """Use a new link to an engine process; it is ready when that process says so."""
        if (previous := self._channel) is not None:
            self._on_closed(previous)  # its process has exited, which its socket may report later than this link
            previous.close()
        channel: Channel[EngineMessage] = Channel(
            EngineMessage,
            lambda message, array_bytes: self._on_message(channel, message, array_bytes),
            lambda: self._on_closed(channel),
            lambda call_id, error: self._on_undecodable(channel, call_id),
        )
        self._channel = channel
        await channel.connect(sock)

    def start_connect(self, sock: socket.socket) -> None:
        """Like `connect`, in a task."""
        self._connecting = asyncio.get_running_loop().create_task(self.connect(sock))

    def set_status(self, status: EngineStatus, reason: str = "") -> None:
        """Record why the engine does not answer, as the supervisor reports it; the link itself tells when it does."""
        self._reported_status = status, reason
        if status != "ready" and self.status != "ready":
            self.status, self.status_reason = status, reason

    def close(self) -> None:
        self._is_closed = True
        if self._channel is not None:
            self._channel.close()

    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]:
        if (client := self._token_client) is not None and client.can_render(request) and self.dead_error is None:
            try:
                return await client.pool(request, self.model_info)
            except NeedsEngine:
                pass  # the engine splits long texts into chunks
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
            next(self._call_ids),
            data,
            request.request_id,
            request.tokenization,
            request.scheduling,
            request.deadline_at,
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
        response, _ = await self._call(MetricsCall(next(self._call_ids)), MetricsResponse)
        return response.families

    def _on_message(self, channel: Channel[EngineMessage], message: EngineMessage, array_bytes: ArrayBytes) -> None:
        if channel is not self._channel:
            return  # of an engine process that has been replaced
        if isinstance(message, EngineReady):
            self.model_info = decode_model_info(message)
            self.status, self.status_reason = "ready", ""
            self.on_ready()
        elif isinstance(message, EngineDown):
            self.status, self.status_reason = "restarting", message.reason
        elif isinstance(message, ModelInfoUpdate):
            self.model_info = decode_model_info(message)
            if self._token_client is not None:
                self._token_client.forget_options()
            channel.send(ModelInfoAck(message.update_id))
        elif isinstance(message, RendererInfo):
            self._token_client = TokenClient(message, channel, lambda: next(self._call_ids))
        elif isinstance(message, OptionsRegistered | TokenResults | TokenErrors):
            self._on_token_response(message, array_bytes)
        else:
            self._on_response(message, array_bytes)

    def _on_token_response(
        self, message: OptionsRegistered | TokenResults | TokenErrors, array_bytes: ArrayBytes
    ) -> None:
        assert self._token_client is not None, "responses come after RendererInfo"
        if isinstance(message, TokenResults):
            self._token_client.on_results(message, array_bytes)
        elif isinstance(message, TokenErrors):
            self._token_client.on_errors(message)
        else:
            self._token_client.on_registered(message)

    def _on_response(self, response: RpcResponse, array_bytes: ArrayBytes) -> None:
        client = self._token_client
        if isinstance(response, ErrorResponse) and client is not None and client.is_registering(response.call_id):
            client.on_refused(response.call_id, decode_error(response.error))
            return
        future = self._pending.get(response.call_id)
        if future is not None and not future.done():  # else the client disconnected in the meantime
            future.set_result((response, array_bytes))

    def _on_undecodable(self, channel: Channel[EngineMessage], call_id: int) -> None:
        future = self._pending.get(call_id)
        if future is not None and not future.done():
            future.set_exception(PoolingError("the response of the engine process cannot be decoded"))
        elif not call_id:
            channel.abort()  # results of calls that are not known: all of them fail, none waits for ever

    def _on_closed(self, channel: Channel[EngineMessage]) -> None:
        """Fail all pending calls: the engine process has exited."""
        if channel is not self._channel:
            return
        self._channel = None
        if self._token_client is not None:
            self._token_client.fail_all(engine_exited_error())
            self._token_client.close()
            self._token_client = None
        if self.status == "ready":
            # the report of the supervisor may have arrived before the end of the link
            is_reported = self._reported_status[0] not in ("loading", "ready")
            exited: tuple[EngineStatus, str] = ("restarting", "its process has exited")
            self.status, self.status_reason = self._reported_status if is_reported else exited
        for future in self._pending.values():
            if not future.done():
                future.set_exception(engine_exited_error())
        if not self._is_closed:
            asyncio.get_running_loop().call_later(RECONNECT_DELAY_S, self._report_lost_link)

    def _report_lost_link(self) -> None:
        if self._channel is None and not self._is_closed:
            self.on_link_lost()

    async def _call(
        self, request: RpcRequest, expected: type[ResponseT], timing: Timing | None = None
    ) -> tuple[ResponseT, ArrayBytes]:
        if self.dead_error is not None:
            raise self.dead_error
        channel = self._channel
        assert channel is not None, "an engine that is ready has a link"
        future = asyncio.get_running_loop().create_future()
        self._pending[request.call_id] = future
        try:
            await channel.wait_writable()
            sent_at = time.monotonic()
            self._send(channel, request)
            response, array_bytes = await future
        except asyncio.CancelledError:
            channel.send(Cancel(request.call_id))
            raise
        finally:
            del self._pending[request.call_id]
        if timing is not None and isinstance(
            response, PoolResponse | ScoreResponse | EntitiesResponse | ProcessResponse | ErrorResponse
        ):
            set_timing(timing, response.timing, sent_at)
        if isinstance(response, ErrorResponse):
            raise decode_error(response.error)
        assert isinstance(response, expected), f"got {type(response).__name__} for {type(request).__name__}"
        return response, array_bytes

    @staticmethod
    def _send(channel: Channel[EngineMessage], request: RpcRequest) -> None:
        try:
            channel.send(request)
        except (OverflowError, UnicodeEncodeError) as error:
            raise BadRequest(f"the request cannot be encoded for the engine process: {error}") from error


def engine_exited_error() -> EngineStopped:
    return EngineStopped("the engine process exited before it responded; retry shortly")

"""Serve the calls of one front-end in the engine process: one task per call, cancelled when its client disconnects."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from cenote.api.encoding import Float32Array
from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_errors import encode_error
from cenote.api.wire.codec_requests import (
    decode_entities,
    decode_input,
    decode_plugin,
    decode_pool,
    decode_score,
    decode_token_ids,
    from_json,
    to_json,
)
from cenote.api.wire.codec_results import (
    encode_entity_results,
    encode_pool_results,
    encode_score_results,
    encode_timing,
)
from cenote.api.wire.link_messages import FrontEndMessage
from cenote.api.wire.messages import (
    Cancel,
    DetokenizeCall,
    DetokenizeResponse,
    EntitiesCall,
    ErrorResponse,
    MetricsCall,
    MetricsResponse,
    PoolCall,
    ProcessCall,
    ProcessResponse,
    RpcRequest,
    RpcResponse,
    ScoreCall,
    TokenizeCall,
    TokenizeResponse,
)
from cenote.errors import PoolingError
from cenote.protocol.engine import Engine
from cenote.protocol.requests import Timing

logger = logging.getLogger("cenote")


class EngineRpcServer:
    def __init__(self, engine: Engine, channel: Channel[FrontEndMessage]) -> None:
        self.engine = engine
        self.channel = channel
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def on_message(self, message: RpcRequest | Cancel) -> None:
        if isinstance(message, Cancel):
            if task := self.tasks.get(message.call_id):
                task.cancel()
        else:
            task = asyncio.get_running_loop().create_task(self._handle(message))
            self.tasks[message.call_id] = task
            task.add_done_callback(lambda _: self.tasks.pop(message.call_id, None))

    def on_unhandled(self, call_id: int) -> None:
        """Refuse one message that cannot be decoded or handled; the others on the link are not affected."""
        refusal = PoolingError("the request could not be read by the engine process")
        self.channel.send(ErrorResponse(call_id, encode_timing(Timing()), encode_error(refusal)))

    def cancel_all(self) -> None:
        """Cancel all calls: the front-end has exited."""
        for task in list(self.tasks.values()):
            task.cancel()

    async def _handle(self, request: RpcRequest) -> None:
        timing = Timing(received_at=time.monotonic())
        try:
            response, arrays = await self._dispatch(request, timing)
            await self.channel.wait_writable()
            self.channel.send(response, arrays)
        except Exception as error:
            if not isinstance(error, PoolingError):
                logger.exception("request from a front-end failed")
            self.channel.send(ErrorResponse(request.call_id, encode_timing(timing), encode_error(error)))

    async def _dispatch(self, request: RpcRequest, timing: Timing) -> tuple[RpcResponse, Sequence[Float32Array]]:
        call_id, engine = request.call_id, self.engine
        if isinstance(request, PoolCall):
            return encode_pool_results(call_id, timing, await engine.pool(decode_pool(request, timing)))
        if isinstance(request, ScoreCall):
            return encode_score_results(call_id, timing, await engine.score(decode_score(request, timing))), ()
        if isinstance(request, EntitiesCall):
            return encode_entity_results(call_id, timing, await engine.entities(decode_entities(request, timing))), ()
        if isinstance(request, TokenizeCall):
            tokenized = await engine.tokenize(
                decode_input(request.prompt),
                add_special_tokens=request.add_special_tokens,
                return_token_strs=request.return_token_strs,
                return_offsets=request.return_offsets,
                mm_processor_kwargs=from_json(request.mm_processor_kwargs),
                max_tokens=request.max_tokens,
            )
            return TokenizeResponse(call_id, tokenized.token_ids, tokenized.token_strs, tokenized.offsets), ()
        if isinstance(request, DetokenizeCall):
            ids = decode_token_ids(request.token_ids)
            text = await engine.detokenize(ids, skip_special_tokens=request.skip_special_tokens)
            return DetokenizeResponse(call_id, text), ()
        if isinstance(request, ProcessCall):
            result = await engine.process(decode_plugin(request, timing))
            counts = result.num_inputs, result.num_tokens, result.num_truncated
            return ProcessResponse(call_id, encode_timing(timing), to_json(result.data), *counts), ()
        assert isinstance(request, MetricsCall), "all other request types are handled above"
        return MetricsResponse(call_id, await engine.collect_metrics()), ()

"""Answer the calls of front-ends in the engine process."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from cenote.api.encoding import Float32Array
from cenote.api.wire.channel import Reply
from cenote.api.wire.codec_errors import encode_error
from cenote.api.wire.codec_requests import (
    decode_input,
    decode_plugin,
    decode_pool,
    decode_token_ids,
)
from cenote.api.wire.codec_results import (
    encode_pool_results,
    encode_timing,
)
from cenote.api.wire.messages import (
    DetokenizeCall,
    DetokenizeResponse,
    ErrorResponse,
    MetricsCall,
    MetricsResponse,
    PoolCall,
    ProcessCall,
    ProcessResponse,
    RpcRequest,
    RpcResponse,
    TokenizeCall,
    TokenizeResponse,
    from_json,
    to_json,
)
from cenote.errors import PoolingError
from cenote.protocol.engine import Engine
from cenote.protocol.requests import Timing

logger = logging.getLogger("cenote")


class EngineRpcServer:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def answer(self, request: RpcRequest) -> Reply:
        timing = Timing(received_at=time.monotonic())
        try:
            return await self._dispatch(request, timing)
        except Exception as error:
            if not isinstance(error, PoolingError):
                logger.exception("request from a front-end failed")
            return ErrorResponse(encode_timing(timing), encode_error(error))

    async def _dispatch(self, request: RpcRequest, timing: Timing) -> tuple[RpcResponse, Sequence[Float32Array]]:
        engine = self.engine
        if isinstance(request, PoolCall):
            return encode_pool_results(timing, await engine.pool(decode_pool(request, timing)))
        if isinstance(request, TokenizeCall):
            tokenized = await engine.tokenize(
                decode_input(request.prompt),
                add_special_tokens=request.add_special_tokens,
                return_token_strs=request.return_token_strs,
                return_offsets=request.return_offsets,
                mm_processor_kwargs=from_json(request.mm_processor_kwargs),
                max_tokens=request.max_tokens,
            )
            return TokenizeResponse(tokenized.token_ids, tokenized.token_strs, tokenized.offsets), ()
        if isinstance(request, DetokenizeCall):
            ids = decode_token_ids(request.token_ids)
            text = await engine.detokenize(ids, skip_special_tokens=request.skip_special_tokens)
            return DetokenizeResponse(text), ()
        if isinstance(request, ProcessCall):
            result = await engine.process(decode_plugin(request, timing))
            counts = result.num_inputs, result.num_tokens, result.num_truncated
            return ProcessResponse(encode_timing(timing), to_json(result.data), *counts), ()
        assert isinstance(request, MetricsCall), "all other request types are handled above"
        return MetricsResponse(await engine.collect_metrics()), ()

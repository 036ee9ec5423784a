"""Answer the requests of front-ends for the IO processor plugin, which runs in the engine process."""

from __future__ import annotations

import time

from cenote.api.wire.messages import ProcessCall, ProcessResponse, from_json, to_json
from cenote.protocol.engine import Engine
from cenote.protocol.requests import PluginRequest, Timing


async def run_plugin(engine: Engine, call: ProcessCall) -> ProcessResponse:
    received_at, timing = time.monotonic(), Timing()
    result = await engine.process(
        PluginRequest(
            data=from_json(call.data),
            request_id=call.request_id,
            tokenization=call.tokenization,
            scheduling=call.scheduling,
            deadline_at=call.deadline_at,
            timing=timing,
        )
    )
    counts = result.num_inputs, result.num_tokens, result.num_truncated
    seconds = timing.mark_delivered() - received_at
    return ProcessResponse(timing, seconds, to_json(result.data), *counts)

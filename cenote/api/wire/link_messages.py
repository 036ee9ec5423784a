"""All messages on the link between a front-end and an engine process."""

from __future__ import annotations

from cenote.api.wire.messages import (
    Cancel,
    Done,
    EngineDown,
    EngineReady,
    MetricsCall,
    MetricsResponse,
    ModelInfoUpdate,
    ProcessCall,
    ProcessResponse,
)
from cenote.api.wire.token_messages import TokenRequest, TokenResponse

FrontEndMessage = TokenRequest | Cancel | ProcessCall | MetricsCall | Done
EngineMessage = TokenResponse | ProcessResponse | MetricsResponse | EngineReady | EngineDown | ModelInfoUpdate

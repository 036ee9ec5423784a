"""All messages on the link between a front-end and an engine process."""

from __future__ import annotations

from cenote.api.wire.messages import (
    Cancel,
    Done,
    EngineDown,
    EngineReady,
    ModelInfoUpdate,
    RpcRequest,
    RpcResponse,
)
from cenote.api.wire.token_messages import TokenRequest, TokenResponse

FrontEndMessage = RpcRequest | TokenRequest | Cancel | Done
EngineMessage = RpcResponse | TokenResponse | EngineReady | EngineDown | ModelInfoUpdate

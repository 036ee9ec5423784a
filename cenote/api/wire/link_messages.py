"""All messages on the link between a front-end and an engine process."""

from __future__ import annotations

from cenote.api.wire.messages import (
    Cancel,
    EngineDown,
    EngineReady,
    ModelInfoAck,
    ModelInfoUpdate,
    RpcRequest,
    RpcResponse,
)
from cenote.api.wire.token_messages import TokenRequest, TokenResponse

FrontEndMessage = RpcRequest | TokenRequest | Cancel | ModelInfoAck
EngineMessage = RpcResponse | TokenResponse | EngineReady | EngineDown | ModelInfoUpdate

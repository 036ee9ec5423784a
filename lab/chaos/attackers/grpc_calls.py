"""Attacks over gRPC: messages that are large before they are decoded, with and without a key."""

from __future__ import annotations

from contextlib import suppress

from lab.chaos.attackers.target import Target

EMPTY_TEXT = b"\x12\x00"  # an element of `RerankRequest.texts`: two bytes of a message, about 50 of memory
NUM_TEXTS = 10_000_000
NUM_CALLS = 4
METHOD = "/tei.v1.Rerank/Rerank"
TIMEOUT_S = 30.0


async def send_empty_strings(target: Target) -> None:
    """Messages of ten million empty strings, some without a key."""
    if target.grpc_port is None:
        return
    import grpc

    message = EMPTY_TEXT * NUM_TEXTS
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"{target.address.host}:{target.grpc_port}", options=options) as channel:
        call = channel.unary_unary(METHOD)
        for number in range(NUM_CALLS):
            metadata = (("authorization", f"Bearer {target.api_key}"),) if number % 2 else ()
            with suppress(grpc.aio.AioRpcError):
                await call(message, metadata=metadata, timeout=TIMEOUT_S)
                target.report.add_problem(f"{METHOD}: {NUM_TEXTS} texts were accepted")

"""Attacks by bodies: products of two fields, texts of tokens, images and models that are none, messages of gRPC."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from contextlib import suppress
from struct import pack
from typing import Any

from lab.chaos.attackers.target import Target

MEGABYTE = 1_000_000
EMBEDDINGS = "/v1/embeddings"
EMPTY_TEXT = b"\x12\x00"  # an element of `RerankRequest.texts`: two bytes of a message, about 50 of memory
NUM_TEXTS = 10_000_000
NUM_CALLS = 4
RERANK_METHOD = "/tei.v1.Rerank/Rerank"
CALL_TIMEOUT_S = 30.0
MAX_SIDE = 30_000  # of an image whose pixels would need gigabytes

# path and body; sizes are those with which an earlier server was killed, or silent for seconds
BODIES: dict[str, tuple[str, Callable[[], Any]]] = {
    "tokens of a character": ("/tokenize", lambda: {"inputs": "," * (12 * MEGABYTE)}),
    "tokens of a byte": ("/tokenize", lambda: {"prompt": "\U0001f600," * MEGABYTE, "return_token_strs": True}),
    "token ids": ("/detokenize", lambda: {"tokens": [7] * MEGABYTE}),
    "inputs and labels": (
        "/v1/classify",
        lambda: {"input": ["a"] * 1500, "labels": ["x" * 4000 + str(number) for number in range(256)]},
    ),
    "chunks of a character": (EMBEDDINGS, lambda: {"input": "a " * MEGABYTE, "chunk_size": 1}),
    "documents and fields": (
        "/rerank",
        lambda: {
            "query": "a",
            "documents": [{"a": "b"}] * 2000,
            "rank_fields": ["a", *(f"f{number}" for number in range(20_000))],
        },
    ),
    "conversations and variables": (
        EMBEDDINGS,
        lambda: {
            "messages": [[{"role": "user", "content": "a"}]] * 64,
            "chat_template_kwargs": {"tools": [{"name": ""}] * 60_000},
        },
    ),
    "large variables": (
        EMBEDDINGS,
        lambda: {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"a": "b" * (8 * MEGABYTE)}},
    ),
    "contents": ("/v1beta/models/a:countTokens", lambda: {"contents": [{"parts": [{"text": "a"}]}] * 40_000}),
    "a huge text": (EMBEDDINGS, lambda: {"input": "word " * (6 * MEGABYTE)}),
    "many inputs": (EMBEDDINGS, lambda: {"input": ["a"] * MEGABYTE}),
    "many answers": (EMBEDDINGS, lambda: {"input": [f"text {number}" for number in range(512)]}),
    "deep JSON": (EMBEDDINGS, lambda: b'{"input": ' + b"[" * MEGABYTE),
    "a huge number": (EMBEDDINGS, lambda: b'{"input": "a", "dimensions": ' + b"9" * 4000 + b"}"),
    "surrogates": (EMBEDDINGS, lambda: b'{"input": "\\ud800"}'),
    "a bomb of pixels": (EMBEDDINGS, lambda: make_image_body(make_png(MAX_SIDE))),
    "a damaged image": (EMBEDDINGS, lambda: make_image_body(make_png(64)[:60])),
    "an image that is text": (EMBEDDINGS, lambda: make_image_body(b"GIF89a" + b"\xff" * MEGABYTE)),
}
# of models that no server has, and of folders that are none
ADMIN_BODIES: tuple[tuple[str, Any], ...] = (
    ("load", {"name": "odd-user", "source": "~nosuchuser/x"}),
    ("load", {"name": "odd-long", "source": "/" + "a" * 300}),
    ("load", {"name": "odd-usr", "source": "/usr"}),
    ("load", {"name": "odd-proc", "source": "/proc/self"}),
    ("load", {"name": "odd-null", "source": "/tmp/\0"}),
    ("load", {"name": "odd-s3", "source": "s3://bucket/../../../victim"}),
    ("load", {"name": "a" * 100_000, "source": "/dev/zero"}),
    ("load", {"name": "odd-options", "source": "/dev/null", "options": {"max_model_len": -1}}),
    ("load", b"[" * 100_000),
    ("unload", {"name": "no-such-model"}),
    ("reload", {"name": "no-such-model"}),
    ("reload", {"name": ["a"] * 1000}),
)


async def send_large_body(target: Target) -> None:
    """One of the bodies whose work or answer would be a product of its fields."""
    path, make = BODIES[target.source.choice(list(BODIES))]
    await target.post(path, make())


async def change_models(target: Target) -> None:
    """Admin requests for models that do not exist, at odd places and with odd names."""
    for route, body in target.source.sample(ADMIN_BODIES, 4):
        await target.post(f"/admin/models/{route}", body, key=target.admin_key)


async def send_empty_strings(target: Target) -> None:
    """Messages of ten million empty strings, some without a key."""
    if target.grpc_port is None:
        return
    import grpc

    message = EMPTY_TEXT * NUM_TEXTS
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"{target.address.host}:{target.grpc_port}", options=options) as channel:
        call = channel.unary_unary(RERANK_METHOD)
        for number in range(NUM_CALLS):
            metadata = (("authorization", f"Bearer {target.api_key}"),) if number % 2 else ()
            with suppress(grpc.aio.AioRpcError):
                await call(message, metadata=metadata, timeout=CALL_TIMEOUT_S)
                target.report.add_problem(f"{RERANK_METHOD}: {NUM_TEXTS} texts were accepted")


def make_image_body(content: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


def make_png(side: int) -> bytes:
    """Return a PNG of one color, of a few kilobytes for a million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data))

    compressor = zlib.compressobj(9)
    rows = b"".join(compressor.compress(bytes(1 + side)) for _ in range(min(side, 4000))) + compressor.flush()
    header = pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")

"""Messages from the first rank to the others, and back, over a socket pair: a length, then msgpack."""

from __future__ import annotations

import socket
import struct
from typing import TypeAlias

import msgspec

LENGTH = struct.Struct("<Q")


class BatchHeader(msgspec.Struct, array_like=True):
    """A PackedBatch without its tensors, which are broadcast as one."""

    seq_lens: list[int]
    columns: list[tuple[str, int]]  # field and number of elements of each tensor of integers, in order
    attended_lens: list[int] | None = None
    embeds_shape: tuple[int, int] | None = None
    is_deterministic: bool = False
    unfolded: BatchHeader | None = None  # of shared prefixes


class Start(msgspec.Struct, tag=True):
    """Load a part of the model."""

    config: bytes  # EngineConfig as JSON
    rank: int
    num_ranks: int
    num_threads: int | None  # of torch; None: its default


class Connect(msgspec.Struct, tag=True):
    """Meet the other ranks: all have loaded their parts."""

    store_file: str
    use_nccl: bool


class RunBackbone(msgspec.Struct, tag=True):
    header: BatchHeader


class RunSplade(msgspec.Struct, tag=True):
    """Compute sparse vectors of sequences of the last batch."""

    seq_indices: list[int]


class Loaded(msgspec.Struct, tag=True):
    num_read_bytes: int


class Failed(msgspec.Struct, tag=True):
    reason: str


ToRank: TypeAlias = Start | Connect | RunBackbone | RunSplade
FromRank: TypeAlias = Loaded | Failed

_encode = msgspec.msgpack.encode
_decode_to_rank = msgspec.msgpack.Decoder(ToRank).decode
_decode_from_rank = msgspec.msgpack.Decoder(FromRank).decode


def send(sock: socket.socket, message: ToRank | FromRank) -> None:
    body = _encode(message)
    sock.sendall(LENGTH.pack(len(body)) + body)


def receive_to_rank(sock: socket.socket) -> ToRank | None:
    """Return the next message; None if the other side has closed the socket or exited."""
    body = _receive_body(sock)
    return None if body is None else _decode_to_rank(body)


def receive_from_rank(sock: socket.socket) -> FromRank | None:
    body = _receive_body(sock)
    return None if body is None else _decode_from_rank(body)


def _receive_body(sock: socket.socket) -> bytes | None:
    head = _receive_exactly(sock, LENGTH.size)
    return None if head is None else _receive_exactly(sock, LENGTH.unpack(head)[0])


def _receive_exactly(sock: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = sock.recv(count - len(parts))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)

"""Messages between the processes of a server: msgpack, followed by raw arrays where there are vectors."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import Timing
from cenote.protocol.scheduling import SchedulingParams
from cenote.utils.metrics import MetricFamily

ArrayBytes = bytearray | memoryview  # the raw arrays after a message
Shapes = list[tuple[int, ...]]  # one per result, or a single one that all results have
JSONBytes = bytes  # any JSON value, encoded; unlike msgpack, its integers have no size limit


class OperandArray(msgspec.Struct, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Operands(msgspec.Struct, array_like=True):
    """The operands of inputs, each of which several may share."""

    indices: list[int]  # of each input, among the arrays; -1: it has none
    arrays: list[OperandArray]


class SerializedError(msgspec.Struct, array_like=True):
    """An error: the name of its class in `cenote.errors`, empty for an internal error, and its message."""

    class_name: str
    message: str
    param: str | None = None
    value: str | None = None
    index: int | None = None


to_json = msgspec.json.encode
from_json = msgspec.json.decode

ReplyT = TypeVar("ReplyT")


class Message(msgspec.Struct, array_like=True, tag=str.lower):
    """The content of one frame."""


class Call(Message, Generic[ReplyT]):
    """A message that is answered by one of the type `ReplyT`, or fails: see `Channel.call`."""


class Done(Message):
    """The reply to a call that has no result."""


# from a front-end to the engine process


class ProcessResponse(Message):
    """Output of an IO processor plugin."""

    timing: Timing
    seconds: float  # in the engine process altogether
    data: JSONBytes
    num_inputs: int
    num_tokens: int
    num_truncated: int


class ProcessCall(Call[ProcessResponse]):
    """Run the IO processor plugin."""

    data: JSONBytes
    request_id: str
    tokenization: TokenizationParams | None
    scheduling: SchedulingParams
    deadline_at: float


class Cancel(Message):
    """The client of these inputs has disconnected."""

    call_id: int


# from the engine process to a front-end


class EngineReady(Message):
    """The model is loaded: the first message on a link."""

    model_info: JSONBytes
    engine_number: int = 0  # of engine processes that have exited before this one was started


class EngineDown(Message):
    """The engine has stopped by itself: no more requests are answered, and the process exits soon."""

    reason: str


class ModelInfoUpdate(Call[Done]):
    """The model info has changed, for example because an adapter was loaded; answered when the front-end knows."""

    model_info: JSONBytes


class MetricsResponse(Message):
    families: list[MetricFamily]


class MetricsCall(Call[MetricsResponse]):
    """Return the metrics of the engine, or of the whole server."""

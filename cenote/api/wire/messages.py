"""Messages between the processes of a server: msgpack, followed by raw arrays where there are vectors."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from cenote.protocol.params import PoolingParams, Role, Task, TokenizationParams
from cenote.protocol.scheduling import SchedulingParams
from cenote.utils.metrics import MetricFamily

# seconds: queue, tokenize, inference, pack, device, deliver, and in the engine process altogether
TimingTuple = tuple[float, float, float, float, float, float, float]
ArrayBytes = bytearray | memoryview  # the raw arrays after a message
JSONBytes = bytes  # any JSON value, encoded; unlike msgpack, its integers have no size limit


class EncodedDocument(msgspec.Struct, tag="document"):
    chunks: tuple[str, ...]


class EncodedConversation(msgspec.Struct, tag="chat"):
    messages: JSONBytes
    template: str | None
    template_kwargs: JSONBytes | None  # None: those of the conversation before it
    add_generation_prompt: bool
    continue_final_message: bool
    image_names: tuple[str, ...]


class EncodedParts(msgspec.Struct, tag="parts"):
    content: JSONBytes
    param_path: str


class EncodedPair(msgspec.Struct, tag="pair"):
    query: str | EncodedParts
    document: str | EncodedParts
    template: str | None
    template_kwargs: JSONBytes


class OutOfRangeIds(msgspec.Struct, tag="ids"):
    """Token ids too large for msgpack integers; sent so that the engine rejects them with its own message."""

    token_ids: JSONBytes


EncodedInput = str | list[int] | EncodedPair | EncodedDocument | EncodedConversation | EncodedParts | OutOfRangeIds


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


class PoolCall(Message):
    call_id: int
    task: Task
    extra_tasks: tuple[Task, ...]
    inputs: list[EncodedInput]
    params: PoolingParams | list[PoolingParams] | None
    tokenization: TokenizationParams
    prompt: str | None
    prompt_name: str | None
    role: Role | None
    input_type: str | None
    embedding_task: str | None
    adapter: str | list[str | None] | None
    mm_processor_kwargs: JSONBytes
    scheduling: SchedulingParams
    deadline_at: float
    return_exceptions: bool
    operands: Operands | None = None
    isolated: list[int] = []  # numbers of inputs that may crash the engine process


class TokenizeCall(Message):
    prompt: EncodedInput
    add_special_tokens: bool
    return_token_strs: bool
    return_offsets: bool
    mm_processor_kwargs: JSONBytes = b"{}"
    max_tokens: int | None = None


class DetokenizeCall(Message):
    token_ids: list[int] | OutOfRangeIds
    skip_special_tokens: bool


class ProcessCall(Message):
    data: JSONBytes
    request_id: str
    tokenization: TokenizationParams | None
    scheduling: SchedulingParams
    deadline_at: float


class Cancel(Message):
    """The client of this request has disconnected."""

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


class TokenLengths(msgspec.Struct, array_like=True):
    """Token counts of all results that are not errors."""

    num_tokens: list[int]
    num_input_tokens: list[int]
    inexact_indices: list[int]  # where `num_input_tokens` is only a lower bound


Shapes = list[tuple[int, ...]]  # one per result, or a single one that all results have


class PoolResponse(Message):
    """Pooling results; their float32 arrays follow, first those of the task, then those of `extra_data`."""

    timing: TimingTuple
    shapes: Shapes
    extra_data: list[tuple[Task, Shapes]]
    lengths: TokenLengths
    errors: list[tuple[int, SerializedError]]  # with their indices in the list of results


class TokenizeResponse(Message):
    token_ids: list[int]
    token_strs: list[str] | None
    offsets: list[tuple[int, int] | None] | None


class DetokenizeResponse(Message):
    text: str


class ProcessResponse(Message):
    """Output of an IO processor plugin."""

    timing: TimingTuple
    data: JSONBytes
    num_inputs: int
    num_tokens: int
    num_truncated: int


class MetricsResponse(Message):
    families: list[MetricFamily]


class MetricsCall(Call[MetricsResponse]):
    """Return the metrics of the engine, or of the whole server."""


class ErrorResponse(Message):
    timing: TimingTuple
    error: SerializedError


RpcRequest = PoolCall | TokenizeCall | DetokenizeCall | ProcessCall | MetricsCall
RpcResponse = PoolResponse | TokenizeResponse | DetokenizeResponse | ProcessResponse | MetricsResponse | ErrorResponse

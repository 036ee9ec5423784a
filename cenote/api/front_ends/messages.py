"""What front-ends and the engine's process tell each other; msgpack, and raw bytes where there are vectors."""

from __future__ import annotations

import msgspec

from cenote.config.server import ServerConfig
from cenote.protocol.params import AggregationStrategy, PoolingParams, Role, Task, TokenizationParams
from cenote.protocol.results import Entity
from cenote.utils.metrics import MetricFamily

TimingTuple = tuple[float, float, float]  # queue, tokenize, inference
JSONBytes = bytes  # values of any shape, in the form in which they came or will leave; its integers have any length


class EncodedPair(msgspec.Struct, tag="pair"):
    query: str
    document: str
    template: str | None
    template_kwargs: JSONBytes


class EncodedListwise(msgspec.Struct, tag="ranking"):
    query: str
    documents: list[str]
    instruction: str | None


class EncodedConversation(msgspec.Struct, tag="chat"):
    messages: JSONBytes
    template: str | None
    template_kwargs: JSONBytes
    add_generation_prompt: bool
    continue_final_message: bool
    image_names: tuple[str, ...]


class EncodedParts(msgspec.Struct, tag="parts"):
    content: JSONBytes
    param_path: str


class OutOfRangeIds(msgspec.Struct, tag="ids"):
    """Token ids that no vocabulary has, and msgpack no room for; the engine refuses them in its own words."""

    token_ids: JSONBytes


EncodedInput = str | list[int] | EncodedPair | EncodedListwise | EncodedConversation | EncodedParts | OutOfRangeIds


class SerializedError(msgspec.Struct, array_like=True):
    """An error: its class in `cenote.errors`, empty for a bug, and what it says."""

    class_name: str
    message: str
    param: str | None = None
    value: str | None = None
    index: int | None = None


class Message(msgspec.Struct, array_like=True, tag=str.lower):
    """One frame; in questions and their answers, `number` tells which belong together."""


# what a front-end says


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
    priority: int
    tenant: str
    return_exceptions: bool


class ScoreCall(Message):
    call_id: int
    queries: list[str | EncodedParts]
    documents: list[str | EncodedParts]
    score_type: str | None
    params: PoolingParams | None
    tokenization: TokenizationParams
    max_tokens_per_query: int
    max_tokens_per_doc: int
    template: str | None
    template_kwargs: JSONBytes
    instruction: str | None
    adapter: str | None
    mm_processor_kwargs: JSONBytes
    priority: int
    tenant: str
    return_exceptions: bool


class EntitiesCall(Message):
    call_id: int
    pool_call: PoolCall
    aggregation_strategy: AggregationStrategy
    ignore_labels: list[str]
    stride: int | None


class TokenizeCall(Message):
    call_id: int
    prompt: EncodedInput
    add_special_tokens: bool
    return_token_strs: bool
    mm_processor_kwargs: JSONBytes = b"{}"


class DetokenizeCall(Message):
    call_id: int
    token_ids: list[int] | OutOfRangeIds


class ProcessCall(Message):
    call_id: int
    data: JSONBytes
    request_id: str
    tokenization: TokenizationParams | None
    priority: int
    tenant: str


class LoadAdapter(Message):
    call_id: int
    name: str
    path: str
    in_place: bool


class UnloadAdapter(Message):
    call_id: int
    name: str


class MetricsCall(Message):
    call_id: int


class Cancel(Message):
    """The client of this question has gone."""

    call_id: int


class FrontEndStats(Message):
    """What a front-end did since it last said so, and what it has to do."""

    replies: list[tuple[str, str, int, float]]  # handler, method, status, seconds
    num_in_flight: int


class Listening(Message):
    """The front-end takes connections."""


class FrontEndReady(Message):
    """The front-end would answer questions about the model."""


class ModelInfoAck(Message):
    """The front-end knows what it was told anew."""

    update_id: int


# what the engine's process says


class Init(Message):
    """The first message of all."""

    settings: ServerConfig
    front_end_id: int  # of the front-end, from 1
    started_at: float  # when the server was started, by the clock that all processes share
    created: int  # the same by the calendar


class EngineReady(Message):
    model_info: JSONBytes


class ModelInfoUpdate(Message):
    """What the model says of itself has changed."""

    update_id: int
    model_info: JSONBytes


class AllFrontEndsReady(Message):
    """So would every other front-end; now the world may know."""


class Drain(Message):
    """Finish what there is, then end."""


class EngineDead(Message):
    error: SerializedError


class OtherFrontEndsLoad(Message):
    """Requests at the other front-ends."""

    num_in_flight: int


class TokenLengths(msgspec.Struct, array_like=True):
    """The token counts of all answers that are no errors."""

    num_tokens: list[int]
    num_input_tokens: list[int]
    inexact_indices: list[int]  # where `num_input_tokens` is only a lower bound


Shapes = list[tuple[int, ...]]  # one for each answer, or a single one that all have


class PoolResponse(Message):
    """Followed by all numbers as float32, end to end, those of further tasks after those of the first."""

    call_id: int
    timing: TimingTuple
    shapes: Shapes
    extra_data: list[tuple[Task, Shapes]]
    lengths: TokenLengths
    errors: list[tuple[int, SerializedError]]  # and where in the list they belong


class ScoreResponse(Message):
    call_id: int
    timing: TimingTuple
    scores: list[float]
    lengths: TokenLengths
    errors: list[tuple[int, SerializedError]]


class EntitiesResponse(Message):
    call_id: int
    timing: TimingTuple
    entities: list[list[Entity]]
    lengths: TokenLengths


class TokenizeResponse(Message):
    call_id: int
    token_ids: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(Message):
    call_id: int
    text: str


class ProcessResponse(Message):
    """What a plugin made of its data."""

    call_id: int
    timing: TimingTuple
    data: JSONBytes
    num_inputs: int
    num_tokens: int
    num_truncated: int


class Ack(Message):
    call_id: int


class MetricsResponse(Message):
    call_id: int
    families: list[MetricFamily]


class ErrorResponse(Message):
    call_id: int
    timing: TimingTuple
    error: SerializedError


RpcRequest = (
    PoolCall
    | ScoreCall
    | EntitiesCall
    | TokenizeCall
    | DetokenizeCall
    | ProcessCall
    | LoadAdapter
    | UnloadAdapter
    | MetricsCall
)
RpcResponse = (
    PoolResponse
    | ScoreResponse
    | EntitiesResponse
    | TokenizeResponse
    | DetokenizeResponse
    | ProcessResponse
    | Ack
    | MetricsResponse
    | ErrorResponse
)
FrontEndMessage = RpcRequest | Cancel | FrontEndStats | Listening | FrontEndReady | ModelInfoAck
EngineMessage = (
    RpcResponse | Init | EngineReady | ModelInfoUpdate | AllFrontEndsReady | Drain | EngineDead | OtherFrontEndsLoad
)

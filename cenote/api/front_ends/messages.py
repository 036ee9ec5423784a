"""What front-ends and the engine's process tell each other; msgpack, and raw bytes where there are vectors."""

from __future__ import annotations

import msgspec

from cenote.config.engine import ServerConfig
from cenote.protocol.requests import Aggregation, Entity, PoolingParams, Role, Task, Tokenization
from cenote.utils.metrics import Family

Times = tuple[float, float, float]  # queue, tokenize, inference
JSON = bytes  # values of any shape, in the form in which they came or will leave; its integers have any length


class PairItem(msgspec.Struct, tag="pair"):
    query: str
    document: str
    template: str | None
    template_kwargs: JSON


class RankingItem(msgspec.Struct, tag="ranking"):
    query: str
    documents: list[str]
    instruction: str | None


class ChatItem(msgspec.Struct, tag="chat"):
    messages: JSON
    template: str | None
    template_kwargs: JSON
    add_generation_prompt: bool
    continue_final_message: bool
    names: tuple[str, ...]


class PartsItem(msgspec.Struct, tag="parts"):
    content: JSON
    where: str


class LargeIds(msgspec.Struct, tag="ids"):
    """Token ids that no vocabulary has, and msgpack no room for; the engine refuses them in its own words."""

    token_ids: JSON


Item = str | list[int] | PairItem | RankingItem | ChatItem | PartsItem | LargeIds


class Fault(msgspec.Struct, array_like=True):
    """An error: its class in `cenote.errors`, empty for a bug, and what it says."""

    kind: str
    message: str
    param: str | None = None
    value: str | None = None
    index: int | None = None


class Message(msgspec.Struct, array_like=True, tag=str.lower):
    """One frame; in questions and their answers, `number` tells which belong together."""


# what a front-end says


class Pool(Message):
    number: int
    task: Task
    also: tuple[Task, ...]
    inputs: list[Item]
    params: PoolingParams | list[PoolingParams] | None
    tokenization: Tokenization
    prompt: str | None
    prompt_name: str | None
    role: Role | None
    input_type: str | None
    purpose: str | None
    adapter: str | list[str | None] | None
    media_kwargs: JSON
    priority: int
    tenant: str
    keep_going: bool


class Score(Message):
    number: int
    queries: list[str | PartsItem]
    documents: list[str | PartsItem]
    score_type: str | None
    params: PoolingParams | None
    tokenization: Tokenization
    max_tokens_per_query: int
    max_tokens_per_doc: int
    template: str | None
    template_kwargs: JSON
    instruction: str | None
    adapter: str | None
    media_kwargs: JSON
    priority: int
    tenant: str
    keep_going: bool


class Tag(Message):
    number: int
    pool: Pool
    aggregation_strategy: Aggregation
    ignore_labels: list[str]
    stride: int | None


class Tokenize(Message):
    number: int
    item: Item
    add_special_tokens: bool
    strings: bool
    media_kwargs: JSON = b"{}"


class Detokenize(Message):
    number: int
    token_ids: list[int] | LargeIds


class Process(Message):
    number: int
    data: JSON
    request_id: str
    tokenization: Tokenization | None
    priority: int
    tenant: str


class AddAdapter(Message):
    number: int
    name: str
    place: str
    in_place: bool


class DropAdapter(Message):
    number: int
    name: str


class Count(Message):
    number: int


class Cancel(Message):
    """The client of this question has gone."""

    number: int


class Seen(Message):
    """What a front-end did since it last said so, and what it has to do."""

    replies: list[tuple[str, str, int, float]]  # handler, method, status, seconds
    num_in_flight: int


class Listening(Message):
    """The front-end takes connections."""


class Aboard(Message):
    """The front-end would answer questions about the model."""


class Noted(Message):
    """The front-end knows what it was told anew."""

    number: int


# what the engine's process says


class Welcome(Message):
    """The first message of all."""

    settings: ServerConfig
    number: int  # of the front-end, from 1
    began: float  # when the server was started, by the clock that all processes share
    created: int  # the same by the calendar


class Ready(Message):
    about: JSON


class Renewed(Message):
    """What the model says of itself has changed."""

    number: int
    about: JSON


class AllAboard(Message):
    """So would every other front-end; now the world may know."""


class Drain(Message):
    """Finish what there is, then end."""


class Dead(Message):
    fault: Fault


class Elsewhere(Message):
    """Requests at the other front-ends."""

    num_in_flight: int


class Lengths(msgspec.Struct, array_like=True):
    """The token counts of all answers that are no errors."""

    num_tokens: list[int]
    num_input_tokens: list[int]
    inexact: list[int]  # where `num_input_tokens` is only a lower bound


Shapes = list[tuple[int, ...]]  # one for each answer, or a single one that all have


class Vectors(Message):
    """Followed by all numbers as float32, end to end, those of further tasks after those of the first."""

    number: int
    timing: Times
    shapes: Shapes
    others: list[tuple[Task, Shapes]]
    lengths: Lengths
    faults: list[tuple[int, Fault]]  # and where in the list they belong


class Scores(Message):
    number: int
    timing: Times
    scores: list[float]
    lengths: Lengths
    faults: list[tuple[int, Fault]]


class Tags(Message):
    number: int
    timing: Times
    entities: list[list[Entity]]
    lengths: Lengths


class Tokens(Message):
    number: int
    token_ids: list[int]
    strings: list[str] | None


class Text(Message):
    number: int
    text: str


class Result(Message):
    """What a plugin made of its data."""

    number: int
    timing: Times
    data: JSON
    num_inputs: int
    num_tokens: int
    num_truncated: int


class Done(Message):
    number: int


class Counted(Message):
    number: int
    families: list[Family]


class Failed(Message):
    number: int
    timing: Times
    fault: Fault


Question = Pool | Score | Tag | Tokenize | Detokenize | Process | AddAdapter | DropAdapter | Count
Answer = Vectors | Scores | Tags | Tokens | Text | Result | Done | Counted | Failed
FromFrontEnd = Question | Cancel | Seen | Listening | Aboard | Noted
FromEngine = Answer | Welcome | Ready | Renewed | AllAboard | Drain | Dead | Elsewhere

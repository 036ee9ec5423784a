"""Request types of the engine; imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec

from cenote.errors import PoolingError
from cenote.protocol.input_types import Input, ScoreInput
from cenote.protocol.params import AggregationStrategy, PoolingParams, Role, ScoreType, Task, TokenizationParams
from cenote.protocol.scheduling import Lane, SchedulingParams

if TYPE_CHECKING:
    import numpy as np

# what a result is computed from besides the tokens of its input: for token_embed the rows of a query [tokens, d], whose
# MaxSim score is returned; for token_classify where the words and labels of a span head are
Operand: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# in a front-end: called with the tokens of all inputs before they are computed, returns the lane for so many
OnTokenized: TypeAlias = "Callable[[int], Lane]"

# return the errors of inputs in the list instead of failing the request; "computed": only those of inputs that the
# engine could not compute, while an invalid input fails the request at once
ReturnExceptions = bool | Literal["computed"]


class Timing(msgspec.Struct):
    """Seconds a request spent in each stage; created with the request and filled in on its way.

    The stages follow each other: parse, tokenize, wire, queue, pack, device, deliver, encode. `inference_s` is not
    a stage of its own: it covers pack, device and the part of deliver in the engine thread.
    """

    queue_s: float = 0.0  # from admission to the first batch, without tokenization
    tokenize_s: float = 0.0
    inference_s: float = 0.0  # from the start of the first batch to the last result
    parse_s: float = 0.0  # from the end of the body to the call of the engine, or the start of tokenization
    wire_s: float = 0.0  # between front-end and engine process, both ways
    pack_s: float = 0.0  # from the start of the first batch until its arrays are on the device
    device_s: float = 0.0  # from there to the end of the last batch, with its results on the host
    deliver_s: float = 0.0  # from there to the handler, without the wire
    encode_s: float = 0.0  # from there to the headers of the response
    # monotonic times, which all processes of a machine share; 0.0: not known
    received_at: float = 0.0  # when this process had the complete request
    answered_at: float = 0.0  # when the last result came to the thread or process of the caller

    def add_sequential(self, other: Timing) -> None:
        """Add the times of a sub-request that ran after this one."""
        self.queue_s += other.queue_s
        self.tokenize_s += other.tokenize_s
        self.inference_s += other.inference_s
        self.pack_s += other.pack_s
        self.device_s += other.device_s
        self.deliver_s += other.deliver_s
        self.parse_s += other.parse_s
        self.wire_s += other.wire_s
        self.answered_at = max(self.answered_at, other.answered_at)

    def add_parallel(self, other: Timing) -> None:
        """Merge the times of a sub-request that ran at the same time."""
        self.queue_s = max(self.queue_s, other.queue_s)
        self.tokenize_s += other.tokenize_s
        self.inference_s = max(self.inference_s, other.inference_s)
        self.pack_s = max(self.pack_s, other.pack_s)
        self.device_s = max(self.device_s, other.device_s)
        self.deliver_s = max(self.deliver_s, other.deliver_s)
        self.answered_at = max(self.answered_at, other.answered_at)

    def mark_delivered(self) -> float:
        """End the stage deliver, when the caller runs again; return the time."""
        now = time.monotonic()
        if self.answered_at:
            self.deliver_s += now - self.answered_at
            self.answered_at = 0.0
        return now


class EngineRequest(msgspec.Struct, frozen=True):
    """Base of requests: structs, as a frozen dataclass takes ten times as long to make, several times per request."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields."""
        return msgspec.structs.replace(self, **changes)


class PoolRequest(EngineRequest, frozen=True, kw_only=True):
    """Inputs and the pooling task to run on each of them."""

    task: Task
    inputs: Sequence[Input]
    extra_tasks: tuple[Task, ...] = ()  # further tasks, computed in the same forward pass
    params: PoolingParams | Sequence[PoolingParams] | None = None  # one for all inputs, or one per input
    tokenization: TokenizationParams = TokenizationParams()
    prompt: str | None = None  # prepended to every text
    prompt_name: str | None = None  # selects a prompt of the model by name
    role: Role | None = None  # for models that format queries and documents differently
    input_type: str | None = None  # a prompt name of the model, or an input_type of another API
    embedding_task: str | None = None  # use of the embeddings: selects the adapter of that name and its prompt
    adapter: str | Sequence[str | None] | None = None  # one for all inputs, or one per input; None: the default
    mm_processor_kwargs: Mapping[str, Any] = msgspec.field(
        default_factory=dict
    )  # override the model's image processor files
    scheduling: SchedulingParams = SchedulingParams()
    deadline_at: float = 0.0  # monotonic time after which nobody waits for the results; 0.0: none
    return_exceptions: ReturnExceptions = False
    timing: Timing = msgspec.field(default_factory=Timing)
    operands: Sequence[Operand | None] | None = None  # one per input; inputs that share one share the object
    num_chars: int | None = None  # of inputs that are not texts, with the variables of their templates, if counted
    on_tokenized: OnTokenized | None = None

    def keeps_error(self, error: PoolingError) -> bool:
        """Whether the error of an input is returned among the results instead of failing the request."""
        return self.return_exceptions is True or (self.return_exceptions == "computed" and error.status == 500)


class ScoreRequest(EngineRequest, frozen=True, kw_only=True):
    """Queries and documents to score, 1:1, 1:N or N:N."""

    queries: Sequence[ScoreInput]
    documents: Sequence[ScoreInput]
    score_type: ScoreType | None = None  # None: the model's preferred type
    params: PoolingParams | None = None
    tokenization: TokenizationParams = TokenizationParams()
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    template: str | None = None  # Jinja text that joins query and document
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    instruction: str | None = None  # for instruction-aware rerankers
    adapter: str | None = None
    mm_processor_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    scheduling: SchedulingParams = SchedulingParams()
    deadline_at: float = 0.0
    return_exceptions: ReturnExceptions = False
    timing: Timing = msgspec.field(default_factory=Timing)
    on_tokenized: OnTokenized | None = None

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """Variables of the template; `template_kwargs` take precedence over `instruction`."""
        return {**({} if self.instruction is None else {"instruction": self.instruction}), **self.template_kwargs}


class EntityRequest(EngineRequest, frozen=True, kw_only=True):
    """Texts for named entity recognition and how token classes are merged into entities."""

    pool_request: PoolRequest  # token_classify, of texts
    aggregation_strategy: AggregationStrategy = "simple"
    ignore_labels: Sequence[str] = ("O",)
    stride: int | None = None  # tokens by which the windows of a long text overlap; None: truncate it
    labels: Sequence[str] | None = None  # what to look for, with a model without labels of its own (GLiNER)
    threshold: float | None = None  # smallest score of an entity, likewise; None: 0.5


class PluginRequest(EngineRequest, frozen=True, kw_only=True):
    """Data in the format of the IO processor plugin."""

    data: Any
    request_id: str
    tokenization: TokenizationParams | None = None  # None: as the plugin specifies
    scheduling: SchedulingParams = SchedulingParams()
    deadline_at: float = 0.0
    timing: Timing = msgspec.field(default_factory=Timing)

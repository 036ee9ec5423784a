"""The upper waist: what people ask, what they get, and the engine they ask; no torch below this line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cenote.protocol.input_types import Input, ScoreInput
from cenote.protocol.params import AggregationStrategy, PoolingParams, Role, ScoreType, Task, TokenizationParams

if TYPE_CHECKING:
    pass


@dataclass(slots=True)
class Timing:
    """Where the time of a request went, in seconds. Whoever asks puts one into the request, the engine fills it in."""

    queue_s: float = 0.0  # admitted, and waiting for its first batch
    tokenize_s: float = 0.0
    inference_s: float = 0.0  # from the start of its first batch to its last answer

    def add_sequential(self, other: Timing) -> None:
        """Take in what a further part of the same question took, one after the other."""
        self.queue_s += other.queue_s
        self.tokenize_s += other.tokenize_s
        self.inference_s += other.inference_s

    def add_parallel(self, other: Timing) -> None:
        """Take in what another part of the same question took, at the same time."""
        self.queue_s = max(self.queue_s, other.queue_s)
        self.tokenize_s += other.tokenize_s
        self.inference_s = max(self.inference_s, other.inference_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """Inputs and the task to do on each of them."""

    task: Task
    inputs: Sequence[Input]
    extra_tasks: tuple[Task, ...] = ()  # further tasks, answered from the same pass through the model
    params: PoolingParams | Sequence[PoolingParams] | None = None  # one for all, or one each
    tokenization: TokenizationParams = TokenizationParams()
    prompt: str | None = None  # put before every text; a name in the model's own list goes into prompt_name
    prompt_name: str | None = None
    role: Role | None = None  # what the inputs are, for models that read queries and documents in different ways
    input_type: str | None = None  # the same in more words: a name in the model's files, or what other programs say
    embedding_task: str | None = None  # what the answers are for: chooses the adapter of that name, and the prompt
    adapter: str | Sequence[str | None] | None = None  # one for all, or one each; the model's default when unset
    mm_processor_kwargs: Mapping[str, Any] = field(
        default_factory=dict
    )  # how images are read, where not as the model's files say
    priority: int = 0  # lower runs earlier, where the scheduling policy looks at it
    tenant: str = ""  # whose request it is: answers that are kept for one are not given to another
    return_exceptions: bool = False  # an input that fails leaves its error in the list instead of failing the request
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Two lists to compare, 1:1, 1:N or N:N."""

    queries: Sequence[ScoreInput]
    documents: Sequence[ScoreInput]
    score_type: ScoreType | None = None  # the model's own kind when unset
    params: PoolingParams | None = None
    tokenization: TokenizationParams = TokenizationParams()
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    template: str | None = None  # Jinja text that joins query and document
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    instruction: str | None = None  # what relevance means, for models that are told
    adapter: str | None = None
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    tenant: str = ""
    return_exceptions: bool = False
    timing: Timing = field(default_factory=Timing)

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """What a template gets to see; its own arguments are nearer to it than the field."""
        return {**({} if self.instruction is None else {"instruction": self.instruction}), **self.template_kwargs}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRequest:
    """Texts, and how the classes of their tokens become entities."""

    pool_request: PoolRequest  # token_classify, of texts
    aggregation_strategy: AggregationStrategy = "simple"
    ignore_labels: Sequence[str] = ("O",)
    stride: int | None = None  # read all of a long text, in windows that share so many tokens; cut it when unset


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRequest:
    """Data that only the IO processor plugin understands."""

    data: Any
    request_id: str
    tokenization: TokenizationParams | None = None  # as the plugin says when unset
    priority: int = 0
    tenant: str = ""
    timing: Timing = field(default_factory=Timing)

"""The upper waist: what people ask, what they get, and the engine they ask; no torch below this line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.metrics import Family

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Task = Literal["embed", "classify", "token_embed", "token_classify", "sparse_embed"]
TASKS: tuple[Task, ...] = get_args(Task)
ScoreType = Literal["cross-encoder", "bi-encoder", "late-interaction", "sparse", "listwise"]
Role = Literal["query", "document"]
TruncationSide = Literal["left", "right"]


@dataclass(slots=True)
class PoolingParams:
    """What a caller may say about one answer; unset fields follow the model."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    extra_kwargs: dict[str, Any] | None = None
    normalize: bool | None = None  # the older name of use_activation
    truncate_prompt_tokens: int | None = None  # the older place of what tokenization_kwargs says
    skip_reading_prefix_cache: bool | None = None  # accepted: nothing is cached here

    def __post_init__(self) -> None:
        for name in ("use_activation", "normalize"):
            check_type(name, getattr(self, name), (bool,))
        check_type("returned_token_ids", self.returned_token_ids, (list, tuple))
        self.use_activation = one_spelling("normalize", self.normalize, "use_activation", self.use_activation)
        self.normalize = None
        self.task = current_task_name(self.task)

    def clone(self) -> PoolingParams:
        return deepcopy(self)


@dataclass(frozen=True, slots=True)
class Options:
    """What the pooler does for one sequence: `PoolingParams` with nothing left open."""

    use_activation: bool = True
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tokenization:
    """How text becomes token ids; unset fields follow the tokenizer's own files."""

    truncate_prompt_tokens: int | None = None  # -1 is the model's length
    truncation_side: TruncationSide | None = None
    add_special_tokens: bool = True
    pad_prompt_tokens: int | None = None  # -1 is the model's length
    do_lower_case: bool | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a document that the model reads together."""

    query: str
    document: str
    template: str | None = None  # Jinja text that joins them; the model's own way when unset
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation, which a chat template turns into one text."""

    messages: Sequence[Mapping[str, Any]]
    template: str | None = None  # Jinja text; the server's or the tokenizer's own when unset
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = False
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Embeds:
    """A prompt given as token embeddings, [tokens, hidden]."""

    rows: Tensor


# a text, one prompt of token ids, two texts read as one, a conversation, or ready-made token embeddings
Input: TypeAlias = "str | Sequence[int] | Pair | Chat | Embeds"


def input_size(item: Input) -> int:
    """Characters or tokens, whichever it is given in: a measure of the work before anything is tokenized."""
    if isinstance(item, Pair):
        return len(item.query) + len(item.document)
    if isinstance(item, Chat):
        return sum(len(str(message.get("content", ""))) for message in item.messages)
    return len(item.rows) if isinstance(item, Embeds) else len(item)


@dataclass(slots=True)
class Timing:
    """Where the time of a request went, in seconds. Whoever asks puts one into the request, the engine fills it in."""

    queue: float = 0.0  # admitted, and waiting for its first batch
    tokenize: float = 0.0
    inference: float = 0.0  # from the start of its first batch to its last answer

    def beside(self, other: Timing) -> None:
        """Take in what another part of the same question took, at the same time."""
        self.queue = max(self.queue, other.queue)
        self.tokenize += other.tokenize
        self.inference = max(self.inference, other.inference)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """Inputs and the task to do on each of them."""

    task: Task
    inputs: Sequence[Input]
    also: tuple[Task, ...] = ()  # further tasks, answered from the same pass through the model
    params: PoolingParams | Sequence[PoolingParams] | None = None  # one for all, or one each
    tokenization: Tokenization = Tokenization()
    prompt: str | None = None  # put before every text; a name in the model's own list goes into prompt_name
    prompt_name: str | None = None
    role: Role | None = None  # what the inputs are, for models that read queries and documents in different ways
    adapter: str | None = None  # the name of the adapter to read them with; the model's default when unset
    priority: int = 0  # lower runs earlier, where the scheduling policy looks at it
    keep_going: bool = False  # an input that fails leaves its error in the list instead of failing the request
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Two lists to compare, 1:1, 1:N or N:N."""

    queries: Sequence[str]
    documents: Sequence[str]
    score_type: ScoreType | None = None  # the model's own kind when unset
    params: PoolingParams | None = None
    tokenization: Tokenization = Tokenization()
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    template: str | None = None  # Jinja text that joins query and document
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    instruction: str | None = None  # what relevance means, for models that are told
    adapter: str | None = None
    priority: int = 0
    keep_going: bool = False
    timing: Timing = field(default_factory=Timing)


@dataclass(slots=True)
class Pooled:
    """The answer to one input: a tensor beside the engine, an array where it came from another process."""

    data: Tensor
    token_ids: np.ndarray[Any, np.dtype[np.int32]]
    num_tokens: int  # as the model read them
    num_input_tokens: int  # before truncation
    input_tokens_exact: bool = True  # False where a huge text was cut before all of it was counted
    others: Mapping[Task, Tensor] = field(default_factory=dict)  # the answers to the request's further tasks

    @property
    def truncated(self) -> bool:
        return self.num_tokens < self.num_input_tokens or not self.input_tokens_exact


@dataclass(slots=True)
class Scored:
    """The score of one pair."""

    score: float
    token_ids: np.ndarray[Any, np.dtype[np.int32]]
    num_tokens: int
    num_input_tokens: int  # before truncation
    input_tokens_exact: bool = True

    @property
    def truncated(self) -> bool:
        return self.num_tokens < self.num_input_tokens or not self.input_tokens_exact


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRequest:
    """Data that only the IO processor plugin understands."""

    data: Any
    request_id: str
    tokenization: Tokenization | None = None  # as the plugin says when unset
    priority: int = 0
    timing: Timing = field(default_factory=Timing)


@dataclass(slots=True)
class Processed:
    """What the plugin made of it, in plain values, and what was read on the way."""

    data: Any = None
    num_inputs: int = 0
    num_tokens: int = 0
    num_truncated: int = 0

    def count(self, answers: Sequence[Pooled | PoolingError]) -> None:
        pooled = [answer for answer in answers if isinstance(answer, Pooled)]
        self.num_inputs += len(pooled)
        self.num_tokens += sum(answer.num_tokens for answer in pooled)
        self.num_truncated += sum(answer.truncated for answer in pooled)


@dataclass(slots=True)
class Tokenized:
    """A prompt as the model would read it."""

    token_ids: list[int]
    strings: list[str] | None = None  # the same tokens as the vocabulary writes them, where asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a loaded model says of itself; plain values, so that they travel between processes."""

    model: str  # the name in messages and replies
    root: str  # what was loaded: a hub name or a folder
    architecture: str
    tasks: tuple[Task, ...]
    default_task: Task
    score_types: tuple[ScoreType, ...]
    max_model_len: int
    dtype: str
    device: str
    embedding_size: int | None  # None where the model embeds nothing
    labels: list[str] | None  # of a classifier, in the order of its probabilities
    prompts: Mapping[str, str]  # by name, from the Sentence Transformers files
    instructions: Mapping[str, str]  # by task, from config.json
    tokenizer_info: Mapping[str, Any]  # tokenizer_config.json, and the chat template if there is one
    has_chat_template: bool
    adapters: tuple[str, ...] = ()  # names that a request may give
    plugin: str | None = None  # the IO processor in use


class Engine(Protocol):
    """What the server needs of an engine, in this process or another."""

    @property
    def about(self) -> About: ...

    @property
    def dead(self) -> PoolingError | None:
        """What ended the engine, if it has ended."""
        ...

    async def pool(self, request: PoolRequest) -> list[Pooled | PoolingError]: ...

    async def score(self, request: ScoreRequest) -> list[Scored | PoolingError]: ...

    async def tokenize(self, item: Input, *, add_special_tokens: bool = True, strings: bool = False) -> Tokenized: ...

    async def detokenize(self, token_ids: Sequence[int]) -> str: ...

    async def process(self, request: PluginRequest) -> Processed:
        """Have the IO processor plugin turn its own kind of input into its own kind of answer."""
        ...

    async def statistics(self) -> list[Family]:
        """Everything that is counted, as it stands now."""
        ...

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None: ...


def check_type(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Refuse a value of another kind, such as the text "false" where a bool is meant; None is always left alone."""
    if value is None or (isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))):
        return
    raise BadRequest(f"{name} is {' or '.join(kind.__name__ for kind in kinds)}, got {value!r}", param=name)


def current_task_name(name: str | None) -> str | None:
    """The task a caller means; a name that was split in two is refused with both successors."""
    if name == "encode":
        raise BadRequest(
            "`encode` task was removed; use `token_embed` or `token_classify` instead.", param="task", value=name
        )
    return name


def task_called(name: str, about: About) -> str:
    """The task of a model that a caller means by a name, today's or an older one."""
    name = current_task_name(name) or ""
    if name != "score":
        return name
    if "cross-encoder" not in about.score_types:
        raise Unsupported(f"`score` is a task of cross-encoders; this model supports {about.tasks}", param="task")
    return "classify"


def one_spelling(old: str, old_value: bool | None, new: str, new_value: bool | None) -> bool | None:
    """The value of an option that goes by two names; both may be given when they agree."""
    if old_value is not None and new_value is not None and old_value != new_value:
        raise BadRequest(f"`{old}` is the older name of `{new}`: got {old_value} and {new_value}; give one", param=old)
    return new_value if new_value is not None else old_value

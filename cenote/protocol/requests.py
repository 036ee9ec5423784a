"""The upper waist: what people ask, what they get, and the engine they ask; no torch below this line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.protocol.input_types import Input, Side
from cenote.utils.metrics import Family

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# the last is that of models whose tensors only an IO processor plugin makes and reads
Task = Literal["embed", "classify", "token_embed", "token_classify", "sparse_embed", "plugin"]
TASKS: tuple[Task, ...] = tuple(task for task in get_args(Task) if task != "plugin")
ScoreType = Literal["cross-encoder", "bi-encoder", "late-interaction", "sparse", "listwise"]
Role = Literal["query", "document"]
RoleName = Literal["query", "document", "search_query", "search_document", "passage"]  # and what others call them
TruncationSide = Literal["left", "right"]
Aggregation = Literal["none", "simple", "first", "average", "max"]


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


@dataclass(slots=True)
class Timing:
    """Where the time of a request went, in seconds. Whoever asks puts one into the request, the engine fills it in."""

    queue: float = 0.0  # admitted, and waiting for its first batch
    tokenize: float = 0.0
    inference: float = 0.0  # from the start of its first batch to its last answer

    def after(self, other: Timing) -> None:
        """Take in what a further part of the same question took, one after the other."""
        self.queue += other.queue
        self.tokenize += other.tokenize
        self.inference += other.inference

    def beside(self, other: Timing) -> None:
        """Take in what another part of the same question took, at the same time."""
        self.queue = max(self.queue, other.queue)
        self.tokenize += other.tokenize
        self.inference = max(self.inference, other.inference)


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter to read prompts with: loaded when first asked for, known by its name from then on."""

    lora_name: str
    lora_int_id: int = 0  # accepted: the name tells adapters apart
    lora_path: str = ""


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
    input_type: str | None = None  # the same in more words: a name in the model's files, or what other programs say
    purpose: str | None = None  # what the answers are for: chooses the adapter of that name, and the prompt
    adapter: str | Sequence[str | None] | None = None  # one for all, or one each; the model's default when unset
    media_kwargs: Mapping[str, Any] = field(
        default_factory=dict
    )  # how images are read, where not as the model's files say
    priority: int = 0  # lower runs earlier, where the scheduling policy looks at it
    tenant: str = ""  # whose request it is: answers that are kept for one are not given to another
    keep_going: bool = False  # an input that fails leaves its error in the list instead of failing the request
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Two lists to compare, 1:1, 1:N or N:N."""

    queries: Sequence[Side]
    documents: Sequence[Side]
    score_type: ScoreType | None = None  # the model's own kind when unset
    params: PoolingParams | None = None
    tokenization: Tokenization = Tokenization()
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    template: str | None = None  # Jinja text that joins query and document
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    instruction: str | None = None  # what relevance means, for models that are told
    adapter: str | None = None
    media_kwargs: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    tenant: str = ""
    keep_going: bool = False
    timing: Timing = field(default_factory=Timing)

    @property
    def variables(self) -> Mapping[str, Any]:
        """What a template gets to see; its own arguments are nearer to it than the field."""
        return {**({} if self.instruction is None else {"instruction": self.instruction}), **self.template_kwargs}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRequest:
    """Texts, and how the classes of their tokens become entities."""

    pool: PoolRequest  # token_classify, of texts
    aggregation_strategy: Aggregation = "simple"
    ignore_labels: Sequence[str] = ("O",)
    stride: int | None = None  # read all of a long text, in windows that share so many tokens; cut it when unset


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


class Stacked(list[Pooled | PoolingError]):
    """Answers that are vectors of one size, every one a row of one array: [inputs, size]."""

    def __init__(self, answers: Iterable[Pooled], rows: Tensor | np.ndarray[Any, Any]) -> None:
        super().__init__(answers)
        self.rows = rows


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
class Entity:
    """A part of a text and its class: merged tokens, or a single one where `index` says which."""

    label: str  # PER; of a single token as the model names it, B-PER
    score: float
    word: str  # its tokens as the tokenizer puts them together
    start: int  # counted in characters of the text as it was sent
    end: int
    text: str  # what stands there
    index: int | None = None

    @property
    def entity_group(self) -> str:
        return self.label

    @property
    def entity(self) -> str:
        return self.label

    def as_dict(self) -> dict[str, Any]:
        """As Transformers' pipeline writes it, and the text."""
        name: dict[str, Any] = {"entity_group": self.label} if self.index is None else {"entity": self.label}
        values = {"score": self.score, "word": self.word, "start": self.start, "end": self.end, "text": self.text}
        return name | values | ({} if self.index is None else {"index": self.index})


@dataclass(slots=True)
class Tagged:
    """The entities of one text, in their order."""

    entities: list[Entity]
    token_ids: np.ndarray[Any, np.dtype[np.int32]]
    num_tokens: int  # as the model read them, in windows those twice that lie in two
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
    tenant: str = ""
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
    default_prompt: str | None = None  # before the texts of requests that say nothing
    marks_roles: bool = False  # queries and documents are read in different ways, each with its own prompt
    adapters: tuple[str, ...] = ()  # names that a request may give
    added_adapters: Mapping[str, str] = field(default_factory=dict)  # those that are no part of it, and their places
    plugin: str | None = None  # the IO processor in use
    finds_entities: bool = False  # a class for every token, with a name
    reads_images: bool = False


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

    async def entities(self, request: EntityRequest) -> list[Tagged]: ...

    async def tokenize(
        self,
        item: Input,
        *,
        add_special_tokens: bool = True,
        strings: bool = False,
        media_kwargs: Mapping[str, Any] | None = None,
    ) -> Tokenized: ...

    async def detokenize(self, token_ids: Sequence[int]) -> str: ...

    async def process(self, request: PluginRequest) -> Processed:
        """Have the IO processor plugin turn its own kind of input into its own kind of answer."""
        ...

    async def load_adapter(self, name: str, place: str, *, in_place: bool = False) -> None:
        """Let requests name one more adapter, from a folder or the hub; `in_place`: instead of the one of that name."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Take no more requests for it, and forget it when those that came are answered."""
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
    if name == "reward":
        return "token_classify"
    if name != "score":
        return name
    if "cross-encoder" not in about.score_types:
        raise Unsupported(f"`score` is a task of cross-encoders; this model supports {about.tasks}", param="task")
    return "classify"


def tasks_called(name: str, about: About) -> tuple[str, ...]:
    """The tasks that a name means: one, or several that are joined as in `embed&sparse_embed`."""
    current_task_name(name)
    return tuple(dict.fromkeys(task_called(part, about) for part in name.split("&")))


def role_called(name: str | None, param: str = "role") -> Role | None:
    """The role that a caller means by a name, ours or another program's."""
    if name is None:
        return None
    if name not in get_args(RoleName):
        raise BadRequest(f"{param} is {' or '.join(get_args(RoleName))}, got {name!r}", param=param)
    return "query" if name in ("query", "search_query") else "document"


def one_role(**given: str | None) -> Role | None:
    """The role that goes by several names; more than one may be given when they agree."""
    roles = {name: role_called(value, name) for name, value in given.items() if value is not None}
    if len(set(roles.values())) > 1:
        said = " and ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        raise BadRequest(f"got {said}; give one", param=next(iter(roles)))
    return next(iter(roles.values()), None)


def one_spelling(old: str, old_value: bool | None, new: str, new_value: bool | None) -> bool | None:
    """The value of an option that goes by two names; both may be given when they agree."""
    if old_value is not None and new_value is not None and old_value != new_value:
        raise BadRequest(f"`{old}` is the older name of `{new}`: got {old_value} and {new_value}; give one", param=old)
    return new_value if new_value is not None else old_value

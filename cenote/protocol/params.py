"""Parameters of requests and the names of tasks, roles and score types."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from cenote.errors import BadRequest

if TYPE_CHECKING:
    pass


# the last is that of models whose tensors only an IO processor plugin makes and reads
Task = Literal["embed", "classify", "token_embed", "token_classify", "sparse_embed", "plugin"]


TASKS: tuple[Task, ...] = tuple(task for task in get_args(Task) if task != "plugin")


ScoreType = Literal["cross-encoder", "bi-encoder", "late-interaction", "sparse", "listwise"]


Role = Literal["query", "document"]


RoleName = Literal["query", "document", "search_query", "search_document", "passage"]  # and what others call them


TruncationSide = Literal["left", "right"]


AggregationStrategy = Literal["none", "simple", "first", "average", "max"]


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
        self.use_activation = resolve_alias("normalize", self.normalize, "use_activation", self.use_activation)
        self.normalize = None
        self.task = validate_task_name(self.task)

    def clone(self) -> PoolingParams:
        return deepcopy(self)


@dataclass(frozen=True, slots=True)
class PoolingOptions:
    """What the pooler does for one sequence: `PoolingParams` with nothing left open."""

    use_activation: bool = True
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenizationParams:
    """How text becomes token ids; unset fields follow the tokenizer's own files."""

    truncate_prompt_tokens: int | None = None  # -1 is the model's length
    truncation_side: TruncationSide | None = None
    add_special_tokens: bool = True
    pad_prompt_tokens: int | None = None  # -1 is the model's length
    do_lower_case: bool | None = None


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter to read prompts with: loaded when first asked for, known by its name from then on."""

    lora_name: str
    lora_int_id: int = 0  # accepted: the name tells adapters apart
    lora_path: str = ""


def check_type(name: str, value: object, types: tuple[type, ...]) -> None:
    """Refuse a value of another kind, such as the text "false" where a bool is meant; None is always left alone."""
    if value is None or (isinstance(value, types) and (bool in types or not isinstance(value, bool))):
        return
    raise BadRequest(f"{name} is {' or '.join(kind.__name__ for kind in types)}, got {value!r}", param=name)


def validate_task_name(name: str | None) -> str | None:
    """The task a caller means; a name that was split in two is refused with both successors."""
    if name == "encode":
        raise BadRequest(
            "`encode` task was removed; use `token_embed` or `token_classify` instead.", param="task", value=name
        )
    return name


def resolve_alias(old: str, old_value: bool | None, new: str, new_value: bool | None) -> bool | None:
    """The value of an option that goes by two names; both may be given when they agree."""
    if old_value is not None and new_value is not None and old_value != new_value:
        raise BadRequest(f"`{old}` is the older name of `{new}`: got {old_value} and {new_value}; give one", param=old)
    return new_value if new_value is not None else old_value

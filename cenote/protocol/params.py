"""Parameters of requests and the names of tasks, roles and score types."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cenote.errors import BadRequest

# `plugin`: models whose input and output tensors are handled by an IO processor plugin
Task = Literal["embed", "classify", "token_embed", "token_classify", "sparse_embed", "plugin"]
TASKS: tuple[Task, ...] = tuple(task for task in get_args(Task) if task != "plugin")

ScoreType = Literal["cross-encoder", "bi-encoder", "late-interaction", "sparse", "listwise"]

Role = Literal["query", "document"]
# the names of roles in other APIs included
RoleName = Literal["query", "document", "search_query", "search_document", "passage"]

TruncationSide = Literal["left", "right"]

AggregationStrategy = Literal["none", "simple", "first", "average", "max"]


@dataclass(slots=True)
class PoolingParams:
    """Pooling parameters of a request; unset fields use the model's defaults."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    extra_kwargs: dict[str, Any] | None = None
    normalize: bool | None = None  # deprecated alias of use_activation
    truncate_prompt_tokens: int | None = None  # deprecated: belongs in tokenization_kwargs
    skip_reading_prefix_cache: bool | None = None  # accepted for compatibility and ignored: there is no KV cache

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
    """Pooling parameters of one sequence: `PoolingParams` with all defaults resolved."""

    use_activation: bool = True
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenizationParams:
    """Tokenization settings; unset fields use the tokenizer's files."""

    truncate_prompt_tokens: int | None = None  # -1: the model's maximum length
    truncation_side: TruncationSide | None = None
    add_special_tokens: bool = True
    pad_prompt_tokens: int | None = None  # -1: the model's maximum length
    do_lower_case: bool | None = None


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """A LoRA adapter to apply to prompts: loaded on first use and identified by its name afterwards."""

    lora_name: str
    lora_int_id: int = 0  # accepted for compatibility and ignored: adapters are identified by name
    lora_path: str = ""


def check_type(name: str, value: object, types: tuple[type, ...]) -> None:
    """Raise BadRequest if a value has another type, such as the text "false" for a bool; None is always accepted."""
    if value is None or (isinstance(value, types) and (bool in types or not isinstance(value, bool))):
        return
    raise BadRequest(f"{name} must be {' or '.join(kind.__name__ for kind in types)}, got {value!r}", param=name)


def validate_task_name(name: str | None) -> str | None:
    """Return the name; raise BadRequest for `encode`, which vLLM replaced by two tasks."""
    if name == "encode":
        raise BadRequest(
            "`encode` task was removed; use `token_embed` or `token_classify` instead.", param="task", value=name
        )
    return name


def resolve_alias(old: str, old_value: bool | None, new: str, new_value: bool | None) -> bool | None:
    """Return the value of an option with a deprecated alias; raise if both are given with different values."""
    if old_value is not None and new_value is not None and old_value != new_value:
        raise BadRequest(
            f"`{old}` is a deprecated alias of `{new}`; both were given, with different values: {old_value} and "
            f"{new_value}",
            param=old,
        )
    return new_value if new_value is not None else old_value

"""Parameters of requests and the names of tasks, roles and score types."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from cenote.errors import BadRequest
from cenote.protocol.matryoshka import Matryoshka

logger = logging.getLogger("cenote")

# `plugin`: models whose input and output tensors are handled by an IO processor plugin
Task = Literal["embed", "classify", "token_embed", "token_classify", "sparse_embed", "plugin"]
TASKS: tuple[Task, ...] = tuple(task for task in get_args(Task) if task != "plugin")
FORMER_TASKS = {"score": "classify", "reward": "token_classify"}  # by their current names

ScoreType = Literal["cross-encoder", "bi-encoder", "late-interaction", "sparse", "listwise"]

Role = Literal["query", "document"]
# the names of roles in other APIs included
RoleName = Literal["query", "document", "search_query", "search_document", "passage"]

TruncationSide = Literal["left", "right"]

AggregationStrategy = Literal["none", "simple", "first", "average", "max"]

# former names of use_activation, in PoolingParams, PoolerConfig and request bodies
DEPRECATED_ACTIVATION_NAMES = ("softmax", "activation")


# fields of PoolingParams that only some tasks accept
TASK_PARAMS = (
    *("use_activation", "dimensions", "normalize", "step_tag_id", "returned_token_ids"),
    "late_chunking_params",
)
STEP_PARAMS = ("step_tag_id", "returned_token_ids")  # accepted by models with STEP pooling


@dataclass(slots=True)
class LateChunkingParams:
    """Late chunking with chunks of a fixed number of tokens: `token_embed` returns the mean of each chunk."""

    chunk_size: int  # tokens, with the special tokens of the text

    def __post_init__(self) -> None:
        self.verify()

    def verify(self) -> None:
        if type(self.chunk_size) is not int or not 0 < self.chunk_size < 2**63:
            raise BadRequest(
                f"chunk_size must be a positive integer less than 2**63, got {self.chunk_size!r}",
                param="late_chunking_params",
            )


@dataclass(slots=True)
class PoolingParams:
    """Pooling parameters of a request; unset fields use the model's defaults."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    extra_kwargs: dict[str, Any] | None = None
    # former name of use_activation for embeddings; kept to refuse it for other tasks
    normalize: bool | None = field(default=None, compare=False)
    truncate_prompt_tokens: int | None = None  # deprecated: belongs in tokenization_kwargs
    skip_reading_prefix_cache: bool | None = None  # accepted for compatibility and ignored: there is no KV cache
    softmax: bool | None = None  # deprecated alias of use_activation
    activation: bool | None = None  # deprecated alias of use_activation
    late_chunking: bool | None = None  # the prompts are chunks of one document, computed in one sequence
    late_chunking_params: LateChunkingParams | None = None  # of the task token_embed

    def __post_init__(self) -> None:
        for name in ("use_activation", "normalize", "late_chunking", *DEPRECATED_ACTIVATION_NAMES):
            check_type(name, getattr(self, name), (bool,))
        check_type("returned_token_ids", self.returned_token_ids, (list, tuple))
        check_type("late_chunking_params", self.late_chunking_params, (LateChunkingParams,))
        for name in DEPRECATED_ACTIVATION_NAMES:
            self.use_activation = resolve_deprecated_alias(
                name, getattr(self, name), "use_activation", self.use_activation
            )
            setattr(self, name, None)
        self.use_activation = resolve_alias("normalize", self.normalize, "use_activation", self.use_activation)
        self.task = validate_task_name(self.task)

    def clone(self) -> PoolingParams:
        return deepcopy(self)

    def verify(self, task: Any, model_config: Any = None) -> None:
        """Check the parameters for a task and fill in the defaults of a model; raise BadRequest, a ValueError.

        `model_config` is that of an `LLM`; without one, only the names are checked. `verify(model_config)` uses the
        task of these parameters, as newer versions of vLLM do.
        """
        if not isinstance(task, str):
            task, model_config = self.task, task
        if task is None or self.task not in (None, task):
            raise BadRequest(f"You cannot overwrite param.task={self.task!r} with pooling_task={task!r}!", param="task")
        if task == "plugin" or "&" in task:
            self.task = task
            return  # any parameters: the plugin, or one of the combined tasks, uses them
        if validate_task_name(task) not in (*TASKS, *FORMER_TASKS):
            raise BadRequest(f"unknown task {task!r}; expected one of: {', '.join(TASKS)}", param="task")
        pooler = getattr(model_config, "pooler_config", None)
        valid = valid_params(task, has_steps=getattr(pooler, "tok_pooling_type", None) == "STEP")
        self.check_supported(task, valid)
        self.task, self.normalize = task, None
        if "use_activation" in valid and self.use_activation is None and hasattr(model_config, "uses_activation"):
            self.use_activation = model_config.uses_activation(task)  # it may differ between the tasks of a model
        for name in TASK_PARAMS:
            if name in valid and getattr(self, name) is None:
                setattr(self, name, getattr(pooler, name, None))
        if "use_activation" in valid and self.use_activation is None:
            self.use_activation = True
        if self.dimensions is not None and hasattr(model_config, "is_matryoshka"):
            sizes = tuple(model_config.matryoshka_dimensions or ())
            matryoshka = Matryoshka(model_config.is_matryoshka, sizes, model_config.embedding_size)
            matryoshka.check_dimensions(self.dimensions, model_config.served_model_name)

    def restrict_to(self, names: Sequence[str]) -> PoolingParams:
        """Return a copy without the task-specific parameters that are not named."""
        dropped = {name for name in TASK_PARAMS if name not in names}
        if "normalize" in dropped and self.normalize is not None:
            dropped.add("use_activation")  # it was given by that name
        return replace(self, **dict.fromkeys(dropped))

    def check_supported(self, task: str, valid: Sequence[str]) -> None:
        """Raise BadRequest if a parameter is set that the task does not support."""
        if unsupported := [name for name in TASK_PARAMS if name not in valid and getattr(self, name) is not None]:
            # embedding tasks call it `normalize`; they accept both names
            listed = [name for name in valid if name != "use_activation" or "normalize" not in valid]
            raise BadRequest(
                f"Task {task!r} only supports {listed} parameters, does not support {unsupported} parameters",
                param=unsupported[0],
            )
        if self.late_chunking_params is not None:
            self.late_chunking_params.verify()  # a caller may have changed it


class PoolingOptions(NamedTuple):
    """Pooling parameters of one sequence: `PoolingParams` with all defaults resolved. Key of dicts, so a tuple."""

    use_activation: bool = True
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] | None = None
    late_chunking: bool = False  # a row for each chunk of the sequence
    chunk_size: int | None = None  # tokens per chunk, of token_embed with late chunking; None: the renderer marks them


class TokenizationParams(msgspec.Struct, frozen=True):
    """Tokenization settings; unset fields use the tokenizer's files."""

    truncate_prompt_tokens: int | None = None  # -1: the model's maximum length
    truncation_side: TruncationSide | None = None
    keep_special_tokens: bool = False  # also with an explicit side; without one they are always kept
    add_special_tokens: bool = True
    pad_prompt_tokens: int | None = None  # -1: the model's maximum length; 0: never padded
    do_lower_case: bool | None = None

    @property
    def truncates_special_tokens(self) -> bool:
        return self.truncation_side is not None and not self.keep_special_tokens


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


def valid_params(task: str, *, has_steps: bool = False) -> list[str]:
    """Return the names of the parameters that a task supports; `has_steps`: the model uses STEP pooling."""
    valid = {
        "embed": ["use_activation", "dimensions", "normalize"],
        "token_embed": ["use_activation", "dimensions", "normalize", "late_chunking_params"],
        "sparse_embed": [],
    }.get(task, ["use_activation"])
    return [*valid, *STEP_PARAMS] if has_steps else valid


def resolve_deprecated_alias(old: str, old_value: bool | None, new: str, new_value: bool | None) -> bool | None:
    """Like `resolve_alias`, and log the current name once."""
    if old_value is not None:
        log_deprecated(old, new)
    return resolve_alias(old, old_value, new, new_value)


@lru_cache  # once per name
def log_deprecated(old: str, new: str) -> None:
    logger.warning("%s is deprecated; use %s", old, new)


def resolve_alias(old: str, old_value: bool | None, new: str, new_value: bool | None) -> bool | None:
    """Return the value of an option with a deprecated alias; raise if both are given with different values."""
    if old_value is not None and new_value is not None and old_value != new_value:
        raise BadRequest(
            f"`{old}` is a deprecated alias of `{new}`; both were given, with different values: {old_value} and "
            f"{new_value}",
            param=old,
        )
    return new_value if new_value is not None else old_value

"""Resolve the pooling settings of a model: from options, then Sentence Transformers files, then the architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cenote.config.options import Sourced
from cenote.config.pooler import PoolerConfig
from cenote.errors import LoadError, Unsupported
from cenote.pooling.methods import POOLING_METHODS
from cenote.protocol.matryoshka import Matryoshka
from cenote.protocol.params import TASK_PARAMS, PoolingOptions, PoolingParams, Task, valid_params

TOKEN_POOLING_TYPES = ("ALL", "STEP")
POOLER_CONFIG_SOURCE = "pooler config"
NORMALIZE_BY_DEFAULT = Sourced(True, "default")


@dataclass(frozen=True, slots=True)
class PoolingFileSettings:
    """Pooling settings in the files of a Sentence Transformers model."""

    methods: Sourced[tuple[str, ...]] | None  # results of several methods are concatenated
    normalize: Sourced[bool] | None
    include_prompt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPlan:
    """All pooling settings of a model, most with their source."""

    model: str  # name in messages
    tasks: tuple[Task, ...]
    seq_pooling_types: Sourced[tuple[str, ...]]
    tok_pooling_type: Sourced[str]
    use_activation: Sourced[bool]
    activation: Sourced[str]  # of logits
    logit_mean: float | None
    logit_sigma: float | None
    include_prompt: bool
    matryoshka: Matryoshka
    defaults: PoolerConfig
    # per token-wise task: ids of a first and last token (special tokens) that get no row in the result
    edge_token_ids: Mapping[Task, tuple[int | None, int | None]] = field(default_factory=dict)
    no_activation_tasks: tuple[Task, ...] = ()  # without activation unless a request sets use_activation
    scalar_tasks: tuple[Task, ...] = ()  # token-wise tasks with a scalar instead of a vector per token
    excluded_token_ids: tuple[int, ...] = ()  # left out of sparse vectors
    pools_table: bool = False  # static embeddings: token states are rows of a table
    unpooled_token_ids: tuple[int, ...] = ()  # left out of MEAN pooling
    num_labels: int | None = None
    has_sparse_head: bool = False

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """The tasks, and `score` if the model is a cross-encoder: a classifier with one label."""
        return (*self.tasks, "score") if "classify" in self.tasks and self.num_labels == 1 else self.tasks

    def resolve_options_for_tasks(
        self, tasks: Sequence[Task], params: PoolingParams | None
    ) -> tuple[PoolingOptions, ...]:
        """Resolve the options of each of several combined tasks; each uses the parameters valid for it."""
        params = params or PoolingParams()
        if params.late_chunking:
            raise Unsupported(
                f"late_chunking is an option of the task embed, got {'&'.join(tasks)}; send the other tasks as a "
                "request of their own",
                param="late_chunking",
            )
        valid = [self._get_valid_params(task) for task in tasks]
        params.check_supported("&".join(tasks), [name for name in TASK_PARAMS if any(name in names for names in valid)])
        return tuple(
            self.resolve_options(task, params.restrict_to(names)) for task, names in zip(tasks, valid, strict=True)
        )

    def resolve_options(self, task: Task, params: PoolingParams | None) -> PoolingOptions:
        """Validate the parameters of a request and fill in the defaults."""
        params = params or PoolingParams()
        defaults = self.defaults
        params.check_supported(task, self._get_valid_params(task))
        if params.late_chunking:
            self._check_late_chunking(task)
        dimensions = None
        if task in ("embed", "token_embed"):
            dimensions = params.dimensions if params.dimensions is not None else defaults.dimensions
        if dimensions is not None:
            self.matryoshka.check_dimensions(dimensions, self.model)
        use_activation = params.use_activation
        if use_activation is None:
            use_activation = self.uses_activation(task)
            if task == "embed" and defaults.use_activation is None and self.matryoshka.is_layer_normed(dimensions):
                use_activation = True  # the values of a layer norm grow with the full size
        chunk_size = None if params.late_chunking_params is None else params.late_chunking_params.chunk_size
        if self.tok_pooling_type.value != "STEP" or task not in ("token_embed", "token_classify"):
            is_late = bool(params.late_chunking) or chunk_size is not None
            return PoolingOptions(use_activation, dimensions, late_chunking=is_late, chunk_size=chunk_size)
        if chunk_size is not None:
            raise Unsupported(
                f"Late chunking requires all token rows; {self.model} has STEP pooling", param="late_chunking_params"
            )
        tag = params.step_tag_id if params.step_tag_id is not None else defaults.step_tag_id
        columns = params.returned_token_ids or defaults.returned_token_ids
        return PoolingOptions(use_activation, dimensions, tag, tuple(columns) if columns else None)

    def resolve_pooler_config(self) -> PoolerConfig:
        """Return the pooler config with the settings of the model's files and defaults, those of its default task."""
        methods = self.seq_pooling_types.value
        sequence = methods[0] if len(methods) == 1 else None  # several are concatenated, which has no name
        token = self.tok_pooling_type.value
        return replace(
            self.defaults,
            pooling_type=token if self.tasks[0].startswith("token_") else sequence,
            seq_pooling_type=sequence,
            tok_pooling_type=token,
            use_activation=self.uses_activation(self.tasks[0]),
            logit_mean=self.logit_mean,
            logit_sigma=self.logit_sigma,
        )

    def uses_activation(self, task: str) -> bool:
        """Return whether a task normalizes or applies its activation by default."""
        return self.use_activation.value and task not in self.no_activation_tasks

    def _check_late_chunking(self, task: Task) -> None:
        """Raise unless the vector of a chunk is the mean of its token states."""
        methods = self.seq_pooling_types.value
        if task != "embed":
            raise Unsupported(f"late_chunking is an option of the task embed, got {task}", param="late_chunking")
        if methods != ("MEAN",) or self.has_sparse_head:
            actual = "SPLADE" if methods == ("MEAN",) else " and ".join(methods)
            raise Unsupported(
                f"late_chunking needs MEAN pooling, which gives every chunk a vector of its own tokens; {self.model} "
                f"uses {actual} pooling: embed the chunks one by one",
                param="late_chunking",
            )

    def _get_valid_params(self, task: Task) -> list[str]:
        return valid_params(task, has_steps=self.tok_pooling_type.value == "STEP")


def resolve_plan(
    *,
    model: str,
    pooler_config: PoolerConfig,
    file_settings: PoolingFileSettings | None,
    method: Sourced[str],
    activation: Sourced[str],
    tasks: Sequence[Task],
    matryoshka: Matryoshka,
    no_activation_tasks: tuple[Task, ...] = (),
    step_tag: Sourced[int] | None = None,
    logit_mean: float | None = None,
    num_labels: int | None = None,
    normalize: Sourced[bool] = NORMALIZE_BY_DEFAULT,
) -> PoolingPlan:
    """Resolve each setting independently: an option for one does not override the files' value of another."""
    sequence: Sourced[tuple[str, ...]]
    if pooler_config.seq_pooling_type is not None:
        sequence = Sourced((_parse_seq_pooling_type(pooler_config.seq_pooling_type),), POOLER_CONFIG_SOURCE)
    elif file_settings is not None and file_settings.methods is not None:
        sequence = file_settings.methods
    else:
        sequence = Sourced((method.value,), method.source)
    if pooler_config.use_activation is not None:
        use_activation = Sourced(pooler_config.use_activation, POOLER_CONFIG_SOURCE)
    elif file_settings is not None and file_settings.normalize is not None:
        use_activation = file_settings.normalize
    else:
        use_activation = normalize
    token = _parse_tok_pooling_type(pooler_config.tok_pooling_type)
    if step_tag is not None and pooler_config.tok_pooling_type is None:
        token = Sourced("STEP", step_tag.source)
        pooler_config = replace(
            pooler_config,
            step_tag_id=step_tag.value if pooler_config.step_tag_id is None else pooler_config.step_tag_id,
        )
    plan = PoolingPlan(
        model=model,
        tasks=_filter_tasks(pooler_config.task, tuple(tasks)),
        seq_pooling_types=sequence,
        tok_pooling_type=token,
        use_activation=use_activation,
        activation=activation,
        logit_mean=logit_mean if pooler_config.logit_mean is None else pooler_config.logit_mean,
        logit_sigma=pooler_config.logit_sigma,
        include_prompt=_resolve_include_prompt(pooler_config, file_settings),
        matryoshka=matryoshka,
        defaults=pooler_config,
        no_activation_tasks=no_activation_tasks if pooler_config.use_activation is None else (),
        num_labels=num_labels,
        has_sparse_head="sparse_embed" in tasks,
    )
    if pooler_config.dimensions is not None:
        matryoshka.check_dimensions(pooler_config.dimensions, model)
    return plan


def _resolve_include_prompt(pooler_config: PoolerConfig, file_settings: PoolingFileSettings | None) -> bool:
    if pooler_config.include_prompt is not None:
        return pooler_config.include_prompt
    return file_settings is None or file_settings.include_prompt


def _parse_seq_pooling_type(name: str) -> str:
    if name.upper() not in POOLING_METHODS:
        raise LoadError(f"unknown pooling method {name!r}; expected one of: {', '.join(sorted(POOLING_METHODS))}")
    return name.upper()


def _parse_tok_pooling_type(name: str | None) -> Sourced[str]:
    if name is None:
        return Sourced("ALL", "default")
    if name.upper() not in TOKEN_POOLING_TYPES:
        raise LoadError(f"unknown tok_pooling_type {name!r}; expected one of: {', '.join(TOKEN_POOLING_TYPES)}")
    return Sourced(name.upper(), POOLER_CONFIG_SOURCE)


def _filter_tasks(requested_task: str | None, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    if requested_task is None:
        return tasks
    parts = {"classify" if part == "score" else part for part in requested_task.split("&")}
    allowed = tuple(task for task in tasks if task in parts)
    if len(allowed) < len(parts):
        raise LoadError(f"Unsupported task: {requested_task!r} Supported tasks: {tasks}")
    return allowed

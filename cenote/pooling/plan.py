"""Which method, head settings and activation apply: flag, then Sentence Transformers files, then the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cenote.config.engine import PoolerConfig, Sourced
from cenote.errors import BadRequest, LoadError, Unsupported
from cenote.pooling.methods import METHODS
from cenote.protocol.requests import Options, PoolingParams, Task

TOKEN_METHODS = ("ALL", "STEP")
FLAG = "pooler config"
GIVEN = ("use_activation", "dimensions", "step_tag_id", "returned_token_ids")


@dataclass(frozen=True, slots=True)
class PoolingFiles:
    """What the files of a Sentence Transformers model say about pooling."""

    methods: Sourced[tuple[str, ...]] | None  # several are concatenated
    normalize: Sourced[bool] | None
    include_prompt: bool = True


@dataclass(frozen=True, slots=True)
class Matryoshka:
    """Which shorter embeddings the model was trained to give."""

    supported: bool
    sizes: tuple[int, ...]  # empty: any
    full_size: int

    def check(self, dimensions: int, model: str) -> None:
        if not isinstance(dimensions, int) or isinstance(dimensions, bool):
            raise BadRequest(f"dimensions is a whole number, got {dimensions!r}", param="dimensions")
        if not self.supported and dimensions != self.full_size:  # clients that name the size it has change nothing
            raise Unsupported(
                f'Model "{model}" does not support matryoshka representation, '
                "changing output dimensions will lead to poor results."
            )
        if self.sizes and dimensions not in self.sizes:
            raise BadRequest(
                f'Model "{model}" only supports {list(self.sizes)} matryoshka dimensions, '
                "use other output dimensions will lead to poor results."
            )
        if not 1 <= dimensions <= self.full_size:
            raise BadRequest(
                f'Model "{model}" only supports dimensions in range [1, {self.full_size}], got {dimensions}.',
                param="dimensions",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPlan:
    """Every decision about pooling, each with who took it."""

    model: str  # the name that messages use
    tasks: tuple[Task, ...]
    sequence: Sourced[tuple[str, ...]]
    token: Sourced[str]
    use_activation: Sourced[bool]
    activation: Sourced[str]  # of logits
    logit_mean: float | None
    logit_sigma: float | None
    include_prompt: bool
    matryoshka: Matryoshka
    defaults: PoolerConfig
    # token-wise answers without a row for the first or last token where it has this id
    borders: Mapping[Task, tuple[int | None, int | None]] = field(default_factory=dict)
    inactive: tuple[Task, ...] = ()  # answers that no activation shapes unless a request asks for it
    scalar_tasks: tuple[Task, ...] = ()  # token-wise answers of one number per token, not one row
    not_words: tuple[int, ...] = ()  # token ids that have no place in a sparse vector

    def options_of_all(self, tasks: Sequence[Task], params: PoolingParams | None) -> tuple[Options, ...]:
        """The same for every task of a combined one: each takes of the parameters those that mean something to it."""
        params = params or PoolingParams()
        valid = [self._valid(task) for task in tasks]
        self._refuse_foreign("&".join(tasks), [name for name in GIVEN if any(name in names for names in valid)], params)
        return tuple(
            self.options(task, replace(params, **{name: None for name in GIVEN if name not in names}))
            for task, names in zip(tasks, valid, strict=True)
        )

    def options(self, task: Task, params: PoolingParams | None) -> Options:
        """What a request asks, checked and completed."""
        params = params or PoolingParams()
        defaults = self.defaults
        self._refuse_foreign(task, self._valid(task), params)
        dimensions = None
        if task in ("embed", "token_embed"):
            dimensions = params.dimensions if params.dimensions is not None else defaults.dimensions
        if dimensions is not None:
            self.matryoshka.check(dimensions, self.model)
        use_activation = params.use_activation
        if use_activation is None:
            use_activation = self.use_activation.value and task not in self.inactive
        if self.token.value != "STEP" or task not in ("token_embed", "token_classify"):
            return Options(use_activation, dimensions)
        tag = params.step_tag_id if params.step_tag_id is not None else defaults.step_tag_id
        columns = params.returned_token_ids or defaults.returned_token_ids
        return Options(use_activation, dimensions, tag, tuple(columns) if columns else None)

    def _valid(self, task: Task) -> list[str]:
        valid = [] if task == "sparse_embed" else ["use_activation"]
        valid += ["dimensions"] if task in ("embed", "token_embed") else []
        if self.token.value == "STEP":
            valid = [*valid, "step_tag_id", "returned_token_ids"]
        return valid

    def _refuse_foreign(self, task: str, valid: Sequence[str], params: PoolingParams) -> None:
        foreign = [name for name in GIVEN if name not in valid and getattr(params, name) is not None]
        if foreign:
            raise BadRequest(
                f"Task {task!r} only supports {list(valid)} parameters, does not support {foreign} parameters",
                param=foreign[0],
            )


def resolve_plan(
    *,
    model: str,
    user: PoolerConfig,
    files: PoolingFiles | None,
    method: Sourced[str],
    activation: Sourced[str],
    tasks: Sequence[Task],
    matryoshka: Matryoshka,
    inactive: tuple[Task, ...] = (),
    step_tag: Sourced[int] | None = None,
    logit_mean: float | None = None,
) -> PoolingPlan:
    """Each field by itself: a user's activation leaves the pooling method of the files in force."""
    sequence: Sourced[tuple[str, ...]]
    if user.seq_pooling_type is not None:
        sequence = Sourced((_sequence_method(user.seq_pooling_type),), FLAG)
    elif files is not None and files.methods is not None:
        sequence = files.methods
    else:
        sequence = Sourced((method.value,), method.source)
    if user.use_activation is not None:
        use_activation = Sourced(user.use_activation, FLAG)
    elif files is not None and files.normalize is not None:
        use_activation = files.normalize
    else:
        use_activation = Sourced(True, "default")
    token = _token_method(user.tok_pooling_type)
    if step_tag is not None and user.tok_pooling_type is None:
        token = Sourced("STEP", step_tag.source)
        user = replace(user, step_tag_id=step_tag.value if user.step_tag_id is None else user.step_tag_id)
    plan = PoolingPlan(
        model=model,
        tasks=_allowed_tasks(user.task, tuple(tasks)),
        sequence=sequence,
        token=token,
        use_activation=use_activation,
        activation=activation,
        logit_mean=logit_mean if user.logit_mean is None else user.logit_mean,
        logit_sigma=user.logit_sigma,
        include_prompt=files.include_prompt if files is not None else True,
        matryoshka=matryoshka,
        defaults=user,
        inactive=inactive if user.use_activation is None else (),
    )
    if user.dimensions is not None:
        matryoshka.check(user.dimensions, model)
    return plan


def _sequence_method(name: str) -> str:
    if name.upper() not in METHODS:
        raise LoadError(f"no pooling method is called {name!r}; there are: {', '.join(sorted(METHODS))}")
    return name.upper()


def _token_method(name: str | None) -> Sourced[str]:
    if name is None:
        return Sourced("ALL", "default")
    if name.upper() not in TOKEN_METHODS:
        raise LoadError(f"no token pooling is called {name!r}; there are: {', '.join(TOKEN_METHODS)}")
    return Sourced(name.upper(), FLAG)


def _allowed_tasks(wanted: str | None, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    if wanted is None:
        return tasks
    parts = {"classify" if part == "score" else part for part in wanted.split("&")}
    allowed = tuple(task for task in tasks if task in parts)
    if len(allowed) < len(parts):
        raise LoadError(f"Unsupported task: {wanted!r} Supported tasks: {tasks}")
    return allowed

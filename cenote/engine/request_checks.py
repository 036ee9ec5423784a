"""Check requests against the model and the configured limits before they are queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cenote.config.engine import EngineConfig
from cenote.engine.adapter_manager import AdapterManager
from cenote.engine.local_pending import LocalPending
from cenote.engine.tokenized_batch import ResolvedOptions
from cenote.errors import BadRequest, Unsupported
from cenote.inputs.limits import Limits, check_tokenization_params
from cenote.inputs.listwise_prompt import join_listwise
from cenote.loading.model_description import ModelDescription
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.late_chunking import check_late_chunking
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import PoolingParams, Task
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import PoolRequest
from cenote.scoring.scorer import ScoringModel

CONVERTIBLE_TASKS = ("embed", "token_embed", "classify", "token_classify")


class RequestChecks:
    """Turn requests into LocalPendings, or raise the error that the caller gets."""

    def __init__(
        self,
        description: ModelDescription,
        config: EngineConfig,
        scoring_model: ScoringModel,
        adapters: AdapterManager,
    ) -> None:
        self.description = description
        self.plan = description.plan
        self.max_model_len = description.max_length.value
        self.config = config
        self.scoring_model = scoring_model
        self.adapters = adapters
        self._default_specs: dict[tuple[Task, ...], tuple[PoolingSpec, ...]] = {}  # of requests without params
        self._limits: dict[Task, Limits] = {}

    def prepare(self, request: PoolRequest, model_info: ModelInfo) -> LocalPending:
        """Check a request and resolve its pooling specs, limits, prompt and adapters."""
        for task in (request.task, *request.extra_tasks):
            self.check_task(task)
        if not len(request.inputs):
            raise BadRequest("You must pass at least one prompt", param="input")
        if self.scoring_model.preferred_score_type == "listwise":
            request = join_listwise(request, model_info.architecture)
        check_documents(request)
        check_late_chunking(request)
        limits = self.resolve_request_limits(request)
        check_tokenization_params(request.tokenization, limits)
        specs = self.build_pooling_specs(request)
        selection = select_prompt(request, model_info)
        if selection.role != request.role:
            request = request.replace(role=selection.role)
        adapter = selection.adapter if request.adapter is None else request.adapter
        adapters = self.adapters.resolve(adapter, len(request.inputs))
        if len(specs) == len(adapters) == 1:  # as in nearly all requests
            pairs = [(specs[0], adapters[0])]
        else:
            pairs = list(zip(*broadcast_lists(specs, adapters), strict=True))
        options = [ResolvedOptions(*pair, limits, request.scheduling, request.role) for pair in pairs]
        return LocalPending(request, options, selection.prompt)

    def resolve_options(self, request: PoolRequest) -> ResolvedOptions:
        """Check the options that all inputs of a request share, and resolve its pooling specs, limits and adapter."""
        for task in (request.task, *request.extra_tasks):
            self.check_task(task)
        limits = self.resolve_request_limits(request)
        (specs,) = self.build_pooling_specs(request)
        (adapter,) = self.adapters.resolve(request.adapter, 1)
        return ResolvedOptions(specs, adapter, limits, request.scheduling, request.role)

    def check_task(self, task: str) -> None:
        """Raise Unsupported if the model does not have the task; the message lists the tasks it has."""
        if task in self.plan.tasks:
            return
        if task in self.description.model_tasks:
            raise Unsupported(
                f'Try switching the model\'s pooling_task via `PoolerConfig(task="{task}")`. It is restricted to '
                f"{self.plan.tasks}",
                param="task",
            )
        api = "Embedding" if task in ("embed", "token_embed") else "Classification"
        convert = "embed" if api == "Embedding" else "classify"
        if task not in CONVERTIBLE_TASKS or self.plan.tasks == ("plugin",) or convert in self.plan.tasks:
            raise Unsupported(f"Unsupported task: {task!r} Supported tasks: {self.plan.tasks}", param="task")
        advice = f"Try converting the model using `--convert {convert}`."
        if convert == "classify" and self.description.entry.kind not in ("sequence", "reward"):
            advice = "It has no classifier: load a model that has one, such as a ...ForSequenceClassification."
            if self.description.entry.kind == "entities":
                advice = (
                    "GLiNER models find entities only (LLM.entities, /entities); for the classification, relations and "
                    "records of GLiNER2 use the gliner2 package."
                )
        raise Unsupported(
            f"{api} API is not supported by this model. {advice} Supported tasks: {self.plan.tasks}", param="task"
        )

    def build_pooling_specs(self, request: PoolRequest) -> Sequence[tuple[PoolingSpec, ...]]:
        """Return the specs of the request's tasks: one tuple for all inputs, or one per input."""
        specs = self._build_specs_of_tasks(request)
        if request.operands is None:
            return specs
        return [tuple([spec.with_operand() for spec in input_specs]) for input_specs in specs]

    def _build_specs_of_tasks(self, request: PoolRequest) -> Sequence[tuple[PoolingSpec, ...]]:
        params = request.params
        tasks = (request.task, *request.extra_tasks)
        if params is None:  # as in nearly all requests
            if tasks not in self._default_specs:
                self._default_specs[tasks] = self._build_specs(tasks, None)
            return [self._default_specs[tasks]]
        if isinstance(params, PoolingParams):
            return [self._build_specs(tasks, params)]
        return [self._build_specs(tasks, item) for item in check_params_list(params, len(request.inputs))]

    def _build_specs(self, tasks: Sequence[Task], params: PoolingParams | None) -> tuple[PoolingSpec, ...]:
        task = "&".join(tasks)
        names: tuple[str | None, ...] = (None, task)
        if task == "classify" and "cross-encoder" in self.scoring_model.score_types:
            names = (*names, "score")  # vLLM's former name of the classify task of cross-encoders
        if params is not None and params.task not in names:
            raise BadRequest(
                f"You cannot overwrite param.task={params.task!r} with pooling_task={task!r}!", param="task"
            )
        if len(tasks) == 1:
            return (PoolingSpec(tasks[0], self.plan.resolve_options(tasks[0], params)),)
        return tuple(map(PoolingSpec, tasks, self.plan.resolve_options_for_tasks(tasks, params)))

    def resolve_request_limits(self, request: PoolRequest) -> Limits:
        """Return the length limits of a request: only the embedding of a text can be computed in several sequences."""
        if request.extra_tasks or has_late_chunking(request):
            return Limits(self.max_model_len)
        return self.resolve_limits(request.task)

    def resolve_limits(self, task: Task) -> Limits:
        """Return the length limits of a task: chunking and max_embed_len apply to embed only."""
        if task not in self._limits:
            self._limits[task] = self._make_limits(task)
        return self._limits[task]

    def _make_limits(self, task: Task) -> Limits:
        pooler = self.config.pooler_config
        if task != "embed" or not (pooler.enable_chunked_processing or pooler.max_embed_len):
            return Limits(self.max_model_len)
        if not pooler.enable_chunked_processing:
            assert pooler.max_embed_len is not None, "one of the two is set"
            if pooler.max_embed_len >= self.max_model_len:
                return Limits(self.max_model_len)
            return Limits(pooler.max_embed_len, "max_embed_len")
        if pooler.max_embed_len is None:
            return Limits(self.max_model_len, is_bounded=False, is_chunked=True)
        max_padded = min(self.max_model_len, pooler.max_embed_len)
        return Limits(pooler.max_embed_len, "max_embed_len", is_chunked=True, max_padded_tokens=max_padded)


def has_late_chunking(request: PoolRequest) -> bool:
    params = request.params
    if params is None:
        return False
    items = params if isinstance(params, list | tuple) else [params]
    return any(isinstance(item, PoolingParams) and bool(item.late_chunking) for item in items)


def check_documents(request: PoolRequest) -> None:
    """Raise if late_chunking is set for inputs that are not the chunks of a document."""
    if has_late_chunking(request) and not all(isinstance(item, ChunkedDocument) for item in request.inputs):
        raise BadRequest(
            "late_chunking needs the texts of the chunks of a document; use LLM.embed(..., late_chunking=True), or "
            "/v1/embeddings",
            param="late_chunking",
        )


def check_params_list(params: Any, num_prompts: int) -> Sequence[PoolingParams]:
    """Return `params` if it is a list with one PoolingParams per prompt; raise BadRequest otherwise."""
    if not isinstance(params, list | tuple) or not all(isinstance(item, PoolingParams) for item in params):
        raise BadRequest("pooling_params must be one PoolingParams for all prompts, or a list with one per prompt")
    if len(params) != num_prompts:
        raise BadRequest(f"The lengths of prompts ({num_prompts}) and params ({len(params)}) must be the same.")
    return params


def broadcast_lists(*lists: Sequence[Any]) -> list[Sequence[Any]]:
    """Repeat lists of one item to the length of the longest."""
    length = max(map(len, lists))
    return [items if len(items) == length else list(items) * length for items in lists]

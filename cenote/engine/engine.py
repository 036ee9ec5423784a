"""The engine: admits requests, has them rendered, run and gathered, and answers everybody who waits."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from cenote.config.engine import EngineConfig
from cenote.engine.adapter_manager import AdapterManager
from cenote.engine.engine_loop import EngineLoop
from cenote.engine.engine_metrics import EngineMetrics
from cenote.engine.execution.executor import Executor, LocalExecutor
from cenote.engine.execution.gpu_executor import GPUExecutor
from cenote.engine.execution.tensor_executor import TensorExecutor
from cenote.engine.execution.token_budget import compute_token_budget
from cenote.engine.execution.warmup import warm_up
from cenote.engine.model_info import build_model_info
from cenote.engine.preprocessing.image_workers import ImageWorkerPool
from cenote.engine.preprocessing.renderer_factory import (
    make_media_policy,
    make_multimodal_processor,
    make_renderer,
    make_tokenizer,
)
from cenote.engine.preprocessing.sub_requests import SubRequest, run_sub_requests, split_request, submit_sub_requests
from cenote.engine.preprocessing.tokenizer_worker import TokenizerWorker
from cenote.engine.request_state import InputOptions, PoolResults, RequestState
from cenote.engine.result_cache_factory import make_result_cache
from cenote.engine.scheduler import Scheduler
from cenote.engine.tasks.entity_recognizer import EntityRecognizer, make_unsupported_error
from cenote.engine.tasks.io_processor import NO_PLUGIN_MESSAGE, load_io_processor
from cenote.engine.tasks.scoring import ScoringService
from cenote.engine.watchdog import Watchdog
from cenote.errors import BadRequest, EngineStopped, Overloaded, PoolingError, Unsupported
from cenote.inputs.limits import Limits, check_tokenization_params
from cenote.inputs.listwise_prompt import parse_listwise_input
from cenote.inputs.media.loader import MediaLoader
from cenote.loading.load import LoadedModel, load_model
from cenote.loading.template_files import read_template_text
from cenote.loading.tensor_model import TensorModel
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.input_types import Input, ListwiseInput, compute_input_size
from cenote.protocol.params import PoolingParams, Task
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest
from cenote.protocol.results import EntityResult, IOProcessorResult, TokenizeResult
from cenote.scoring.scorer import ScoreResults, ScoringModel
from cenote.utils.async_utils import run_coroutine_sync
from cenote.utils.metrics import MetricFamily

logger = logging.getLogger("cenote")

T = TypeVar("T")
OnProgress = Callable[[RequestState], None]

# how many batches wait ready while one runs; the more, the better lengths can be matched
MAX_QUEUED_BATCHES = 16
# how long a stop waits for the batch that is running
THREAD_JOIN_TIMEOUT_S = 5.0
# how often the rest of a request with many images looks for room
CAPACITY_POLL_S = 0.02


class PoolingEngine:
    """One loaded model and the threads that serve it."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        executor: Executor | None = None,
        *,
        trust_callers: bool = False,
    ) -> None:
        """`trusts_callers`: they are this very program, and may name any of its files."""
        self.model = model
        self.config = config
        description = model.description
        self.plan = description.plan
        self.max_model_len = description.max_length.value
        self.tokenizer = make_tokenizer(model)
        self.chat_template = read_template_text(config.chat_template, "chat_template")
        self.media_loader = MediaLoader(make_media_policy(config, trust_callers=trust_callers))
        seeing = make_multimodal_processor(model, config, self.tokenizer, self.media_loader)
        self.image_workers = ImageWorkerPool(seeing, config.max_waiting_chars)
        self.renderer = make_renderer(model, config, self.tokenizer, self.chat_template, seeing)
        self.scoring_model = ScoringModel(
            description.name,
            self.plan.tasks,
            description.num_labels,
            model.tokenizer.pad_token_id,
            description.score_type,
            self.max_model_len,
        )
        self.scoring = ScoringService(self.scoring_model, self.renderer, description.late_interaction is not None)
        self.entity_recognizer = EntityRecognizer(model, self.tokenizer) if EntityRecognizer.supports(model) else None
        self.io_processor = load_io_processor(config, description, model.tokenizer.tokenizer)
        plugin = self.io_processor.name if self.io_processor else None
        self.model_info = build_model_info(model, self.scoring_model, plugin=plugin, chat_template=self.chat_template)
        self.metrics = EngineMetrics()
        self.adapters = AdapterManager(model.adapters, self.metrics)
        self.result_cache = make_result_cache(description, config, self.metrics.registry)
        device = description.device.value
        budget = config.max_num_batched_tokens or compute_token_budget(model.backbone, device)
        scheduler = Scheduler(budget, config.max_num_seqs, by_priority=config.scheduling_policy == "priority")
        self.metrics.register_queue(lambda: scheduler.num_waiting_tokens)
        self.loop = EngineLoop(
            scheduler,
            executor or self._make_executor(device),
            self.metrics,
            self._on_thread_exit,
        )
        self.tokenizer_worker = TokenizerWorker(
            self.renderer,
            self.loop,
            max_model_len=self.max_model_len,
            token_budget=budget,
            max_waiting_tokens=MAX_QUEUED_BATCHES * budget,
            on_exit=self._on_thread_exit,
            cache=self.result_cache,
            is_cacheable=self.adapters.is_builtin,
        )
        self.metrics.register_dedup(self.tokenizer_worker.dedup, getattr(self.loop.executor, "prefix_sharing", None))
        self.watchdog = Watchdog(lambda: self.loop.step_started_at, config.step_timeout_s, self._on_thread_exit)
        self.pid = os.getpid()  # threads do not follow a fork
        self.dead_error: PoolingError | None = None
        self._default_specs: dict[
            tuple[Task, ...], tuple[PoolingSpec, ...]
        ] = {}  # of requests without parameters, by tasks
        self._lock = threading.Lock()
        for part in (self.loop, self.tokenizer_worker, self.watchdog):
            part.thread.start()
        logger.info("Supported pooling tasks: %s", ", ".join(self.plan.tasks))

    def _make_executor(self, device: torch.device) -> Executor:
        """The model where it is; on a GPU, used once before anybody waits for what is compiled on first use."""
        if isinstance(self.model.backbone, TensorModel):
            return TensorExecutor(self.model.backbone)
        if device.type != "cuda":
            return LocalExecutor(self.model.backbone, self.model.pooler, device)
        executor = GPUExecutor(self.model.backbone, self.model.pooler, device)
        ask = PoolingSpec(
            self.model.description.default_task, self.plan.resolve_options(self.model.description.default_task, None)
        )
        warm_up(executor, ask, self.max_model_len, self.renderer.vocab_size)
        return executor

    @classmethod
    def load(cls, config: EngineConfig, *, trust_callers: bool = False) -> PoolingEngine:
        return cls(load_model(config), config, trust_callers=trust_callers)

    async def pool(self, request: PoolRequest, query_embeddings: Sequence[Tensor] | None = None) -> PoolResults:
        """Answers in the order of the inputs. A caller that is cancelled takes its waiting work along.

        With the rows of a query for every input, answers are numbers: how well the input matches them.
        """
        several = split_request(
            request,
            len(self.image_workers.find_image_indices(request)),
            query_embeddings,
            self.image_workers.sub_request_size,
        )
        if len(several) == 1:
            pending = self.submit(
                await self.image_workers.preprocess(request), check_capacity=True, query_embeddings=query_embeddings
            )
            return await self._await_results(pending)

        async def answers(portion: SubRequest, ready: PoolRequest) -> PoolResults:
            first = portion.offset == 0
            if not first:  # it was let in, and is not turned away half-way
                await self._wait_for_capacity(sum(map(compute_input_size, ready.inputs)))
            return await self._await_results(
                self.submit(ready, check_capacity=first, query_embeddings=portion.query_embeddings)
            )

        return await run_sub_requests(several, self.image_workers.preprocess, answers, request.timing)

    def pool_sync(
        self,
        request: PoolRequest,
        on_progress: OnProgress | None = None,
        query_embeddings: Sequence[Tensor] | None = None,
    ) -> PoolResults:
        found: PoolResults = []
        for portion, pending in self.submit_sub_requests(request, query_embeddings):
            with portion.error_index_scope():
                found += pending.wait(on_progress)
        return found

    async def score(self, request: ScoreRequest) -> ScoreResults:
        """A score for every pair, in the order of the documents."""
        return await self.scoring.score(request, self.pool)

    def score_sync(self, request: ScoreRequest, on_progress: OnProgress | None = None) -> ScoreResults:
        return self.scoring.score_sync(request, lambda part, against: self.pool_sync(part, on_progress, against))

    async def entities(self, request: EntityRequest) -> list[EntityResult]:
        """The entities of every text, in the order of the texts."""
        if self.entity_recognizer is None:
            raise make_unsupported_error(self.model_info.name)
        return await self.entity_recognizer.recognize(request, self.pool, asyncio.to_thread)

    def entities_sync(self, request: EntityRequest, on_progress: OnProgress | None = None) -> list[EntityResult]:
        async def pool(part: PoolRequest) -> PoolResults:
            return self.pool_sync(part, on_progress)

        async def at_once(work: Callable[[], Any]) -> Any:
            return work()

        if self.entity_recognizer is None:
            raise make_unsupported_error(self.model_info.name)
        return run_coroutine_sync(self.entity_recognizer.recognize(request, pool, at_once))

    async def tokenize(
        self,
        prompt: Input,
        *,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> TokenizeResult:
        """The ids of a prompt, whatever its length."""
        prompt = await self.image_workers.preprocess_input(prompt, mm_processor_kwargs or {})

        def tokenized() -> TokenizeResult:
            ids = self.renderer.tokenize(prompt, add_special_tokens=add_special_tokens)
            return TokenizeResult(ids, self.tokenizer.convert_ids_to_tokens(ids) if return_token_strs else None)

        return await asyncio.to_thread(tokenized)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await asyncio.to_thread(self.tokenizer.detokenize, token_ids)

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        if self.io_processor is None:
            raise Unsupported(NO_PLUGIN_MESSAGE)
        processed = IOProcessorResult()

        async def pool(part: PoolRequest) -> PoolResults:
            answers = await self.pool(replace(part, tenant=request.tenant))
            processed.add_usage(answers)
            request.timing.add_parallel(part.timing)
            return answers

        processed.data = await self.io_processor.process(
            request.data,
            pool,
            request_id=request.request_id,
            priority=request.priority,
            tokenization=request.tokenization,
        )
        return processed

    def add_adapter(self, name: str, path: str) -> None:
        """Load an adapter from a folder or the hub; one of that name that is there already stays."""
        self.adapters.add(name, path)
        self._update_adapter_info()

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        def load() -> None:  # to its end, even if whoever asked has gone
            self.adapters.load(name, path, in_place=in_place)
            self._update_adapter_info()

        await asyncio.to_thread(load)

    async def unload_adapter(self, name: str) -> None:
        self.adapters.unregister(name)
        self._update_adapter_info()
        await asyncio.to_thread(self.adapters.unload_when_idle, name)

    def _update_adapter_info(self) -> None:
        if (loaded := self.adapters.registry) is not None:
            self.model_info = replace(
                self.model_info, adapters=loaded.names, external_adapters=dict(loaded.added_paths)
            )

    async def collect_metrics(self) -> list[MetricFamily]:
        return self.metrics.registry.snapshot()

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self.metrics.on_http_response(handler, method, status, seconds)

    def submit_sub_requests(
        self, request: PoolRequest, query_embeddings: Sequence[Tensor] | None = None
    ) -> Iterator[tuple[SubRequest, RequestState]]:
        """The request on its way; in portions, one behind the other, where it has many images."""
        several = split_request(
            request,
            len(self.image_workers.find_image_indices(request)),
            query_embeddings,
            self.image_workers.sub_request_size,
        )
        return submit_sub_requests(
            several,
            self.image_workers.preprocess_sync,
            lambda portion, ready: self.submit(ready, query_embeddings=portion.query_embeddings),
        )

    async def _await_results(self, state: RequestState) -> PoolResults:
        await asyncio.wrap_future(state.future)
        return state.get_results()

    def submit(
        self, request: PoolRequest, *, check_capacity: bool = False, query_embeddings: Sequence[Tensor] | None = None
    ) -> RequestState:
        """Check a request against the model and let it in; where strangers ask, only while there is room.

        With the rows of a query for every input, answers are numbers: how well the input matches them.
        """
        if os.getpid() != self.pid:
            raise EngineStopped(f"this engine belongs to process {self.pid}; load the model after forking")
        for task in (request.task, *request.extra_tasks):
            self.check_task(task)
        if not len(request.inputs):
            raise BadRequest("You must pass at least one prompt", param="input")
        if self.scoring_model.preferred_score_type == "listwise" and not all(
            isinstance(item, ListwiseInput) for item in request.inputs
        ):
            request = replace(request, inputs=[parse_listwise_input(request.inputs, self.model_info.architecture)])
        # the mean over chunks is for one vector; what else is asked needs the text in one piece
        limits = self._resolve_limits(request.task) if not request.extra_tasks else Limits(self.max_model_len)
        check_tokenization_params(request.tokenization, limits)
        asks = self._build_pooling_specs(request)
        if query_embeddings is not None:
            asks = [tuple(ask._replace(is_max_sim=True) for ask in each) for each in asks]
        meant = select_prompt(request, self.model_info)
        if meant.role != request.role:
            request = replace(request, role=meant.role)
        asked = meant.adapter if request.adapter is None else request.adapter
        adapters = self.adapters.resolve(asked, len(request.inputs))
        wishes = [InputOptions(*each) for each in zip(*_broadcast_lists(asks, adapters), strict=True)]
        pending = RequestState(request, wishes, limits, meant.prompt, query_embeddings)
        with self._lock:
            if self.dead_error is not None:
                raise self.dead_error.with_traceback(None)  # or the same error grows longer with every call
            if check_capacity:
                self._check_capacity(pending.num_chars)
            self.metrics.on_admit(pending)
        self.tokenizer_worker.add(pending)
        return pending

    @property
    def is_running(self) -> bool:
        """Whether a thread is still at work: after `stop`, one whose batch takes long."""
        return any(part.thread.is_alive() for part in (self.loop, self.tokenizer_worker, self.watchdog))

    def stop(self, reason: PoolingError | None = None) -> None:
        """End the threads; whoever still waits is told so."""
        with self._lock:
            if self.dead_error is not None:
                return
            self.dead_error = reason or EngineStopped("the engine was stopped before the answer came")
            in_flight = self.metrics.requests_in_flight()
        parts = (self.loop, self.tokenizer_worker, self.watchdog)
        for part in parts:
            part.stop()
        for pending in in_flight:
            pending.fail_all(self.dead_error)
        # a thread still inside torch when the interpreter ends brings the whole process down
        for part in parts:
            if part.thread is not threading.current_thread():
                part.thread.join(timeout=THREAD_JOIN_TIMEOUT_S)
        self.image_workers.close()
        self.media_loader.close()
        if self.result_cache is not None:
            self.result_cache.close()

    def _on_thread_exit(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, PoolingError):
            self.stop(error)
        else:
            self.stop(EngineStopped(f"the engine died: {type(error).__name__}: {error}"))

    def _check_capacity(self, num_chars: int) -> None:
        """Refuse what would have to wait behind too much; alone, any request is welcome."""
        if not self._has_capacity(num_chars):
            raise Overloaded(
                f"requests with {self.metrics.num_in_flight_chars} characters are being worked on, and "
                f"{self.config.max_waiting_chars} is the most (--max-waiting-chars); try again soon"
            )

    def _has_capacity(self, num_chars: int) -> bool:
        waiting = self.metrics.num_in_flight_chars
        return not waiting or waiting + num_chars <= self.config.max_waiting_chars

    async def _wait_for_capacity(self, num_chars: int) -> None:
        while self.dead_error is None and not self._has_capacity(num_chars):
            await asyncio.sleep(CAPACITY_POLL_S)

    def check_task(self, task: str) -> None:
        """Refuse what the model cannot do, with what it can."""
        if task in self.plan.tasks:
            return
        wanted = "Embedding" if task in ("embed", "token_embed") else "Classification"
        convert = "embed" if wanted == "Embedding" else "classify"
        possible = {name.removeprefix("token_") for name in self.plan.tasks}
        convertible = task in ("embed", "token_embed", "classify", "token_classify") and possible != {"plugin"}
        if not convertible or convert in possible:
            raise Unsupported(f"Unsupported task: {task!r} Supported tasks: {self.plan.tasks}", param="task")
        advice = f"Try converting the model using `--convert {convert}`."
        if convert == "classify" and self.model.description.entry.kind not in ("sequence", "reward"):
            advice = "It has no classifier: load a model that has one, such as a ...ForSequenceClassification."
        raise Unsupported(
            f"{wanted} API is not supported by this model. {advice} Supported tasks: {self.plan.tasks}", param="task"
        )

    def _build_pooling_specs(self, request: PoolRequest) -> Sequence[tuple[PoolingSpec, ...]]:
        """One for all inputs, or one each."""
        params = request.params
        tasks = (request.task, *request.extra_tasks)
        if params is None:  # as in nearly all requests
            if tasks not in self._default_specs:
                self._default_specs[tasks] = self._build_specs(tasks, None)
            return [self._default_specs[tasks]]
        if isinstance(params, PoolingParams):
            return [self._build_specs(tasks, params)]
        if not isinstance(params, list | tuple) or not all(isinstance(each, PoolingParams) for each in params):
            raise BadRequest("pooling_params is one PoolingParams for all prompts, or a list with one for each")
        if len(params) != len(request.inputs):
            raise BadRequest(
                f"The lengths of prompts ({len(request.inputs)}) and params ({len(params)}) must be the same."
            )
        return [self._build_specs(tasks, each) for each in params]

    def _build_specs(self, tasks: Sequence[Task], params: PoolingParams | None) -> tuple[PoolingSpec, ...]:
        task = "&".join(tasks)
        names: tuple[str | None, ...] = (None, task)
        if task == "classify" and "cross-encoder" in self.scoring_model.score_types:
            names = (*names, "score")  # the older name of a cross-encoder's classify
        if params is not None and params.task not in names:
            raise BadRequest(
                f"You cannot overwrite param.task={params.task!r} with pooling_task={task!r}!", param="task"
            )
        if len(tasks) == 1:
            return (PoolingSpec(tasks[0], self.plan.resolve_options(tasks[0], params)),)
        return tuple(map(PoolingSpec, tasks, self.plan.resolve_options_for_tasks(tasks, params)))

    def _resolve_limits(self, task: Task) -> Limits:
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
        return Limits(pooler.max_embed_len, "max_embed_len", is_chunked=True)


def _broadcast_lists(*lists: Sequence[Any]) -> list[Sequence[Any]]:
    """One for all becomes one each, where the other list has one each."""
    most = max(map(len, lists))
    return [each if len(each) == most else list(each) * most for each in lists]

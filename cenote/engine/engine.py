"""PoolingEngine: admit requests, tokenize, schedule and run them, and return their results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cenote.config.engine import EngineConfig
from cenote.config.vllm_config import VllmConfig
from cenote.engine.adapter_manager import AdapterManager
from cenote.engine.core import EngineCore, join_thread
from cenote.engine.engine_executors import EngineExecutors
from cenote.engine.engine_metrics import EngineMetrics
from cenote.engine.execution.executor import Executor
from cenote.engine.execution.executor_factory import make_executor
from cenote.engine.local_engine import LocalEngine
from cenote.engine.local_pending import LocalPending
from cenote.engine.model_info import build_model_info
from cenote.engine.preprocessing.image_workers import ImageWorkerPool
from cenote.engine.preprocessing.renderer_factory import (
    make_media_policy,
    make_model_tokenizer,
    make_multimodal_processor,
    make_multimodal_settings,
    make_renderer,
    make_renderer_settings,
    make_tokenizer_settings,
)
from cenote.engine.preprocessing.tokenizer_worker import TokenizerWorker
from cenote.engine.request_checks import RequestChecks
from cenote.engine.self_check import SelfCheck
from cenote.engine.task_settings import make_task_settings
from cenote.engine.tasks.io_processor import load_io_processor
from cenote.engine.tasks.text_tasks import TextTasks
from cenote.errors import EngineStopped, LoadError, PoolingError, make_internal_error
from cenote.inputs.model_tokenizer import ModelTokenizer
from cenote.kernels.default_device import ignore_default_device
from cenote.loading.load import load_model
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.model_config import ModelConfig
from cenote.loading.template_files import read_template_text
from cenote.protocol.engine import EngineStatus
from cenote.protocol.params import Role
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import PoolRequest
from cenote.utils.busy_stages import BusyStages
from cenote.utils.fork import get_process_id
from cenote.utils.metrics import MetricFamily

if TYPE_CHECKING:
    from cenote.inputs.images.multimodal_processor import MultimodalProcessor
    from cenote.inputs.media.loader import MediaLoader

logger = logging.getLogger("cenote")


class PoolingEngine(LocalEngine):
    """One loaded model and the threads that serve it."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        executor: Executor | None = None,
        *,
        trust_callers: bool = False,
        metrics: EngineMetrics | None = None,
    ) -> None:
        """`trust_callers`: requests come from this program itself and may refer to any local file.

        `metrics` are those of the engine that this one is a route of.
        """
        self.model = model
        self.routes: dict[Role, PoolingEngine] = {}  # engines of roles that other modules of the model encode
        self.config = config
        description = model.description
        self.plan = description.plan
        self.max_model_len = description.max_length.value
        self.tokenizer_settings = make_tokenizer_settings(model)
        self.tokenizer = self.tokenizer_settings.make_tokenizer(model.tokenizer.tokenizer)
        self.chat_template = read_template_text(config.chat_template, "chat_template")
        media_policy = make_media_policy(config, trust_callers=trust_callers)
        multimodal_settings = make_multimodal_settings(model, config, media_policy)
        self.media_loader: MediaLoader | None = None
        multimodal: MultimodalProcessor | None = None
        if multimodal_settings is not None:
            from cenote.inputs.media.loader import MediaLoader  # with Pillow, which models of texts do without

            self.media_loader, folder = MediaLoader(media_policy), str(description.checkpoint.folder)
            multimodal = make_multimodal_processor(multimodal_settings, folder, self.tokenizer, self.media_loader)
        self.busy_stages = BusyStages()
        self.executors = EngineExecutors()
        self.image_workers = ImageWorkerPool(multimodal, self.busy_stages)
        self.renderer_settings = make_renderer_settings(model, config, self.chat_template, multimodal_settings)
        self.renderer = make_renderer(model, self.renderer_settings, self.tokenizer, multimodal)
        self.task_settings = make_task_settings(model)
        self.scoring_model = self.task_settings.scoring
        self.tasks = TextTasks(self.task_settings, self.renderer)
        self.io_processor = load_io_processor(config, description, self.make_model_tokenizer, self.busy_stages)
        plugin = self.io_processor.name if self.io_processor else None
        self.model_info = build_model_info(
            model,
            self.task_settings,
            plugin=plugin,
            chat_template=self.chat_template,
            special_tokens=self.tokenizer.single_template,
            has_result_cache=config.result_cache_bytes > 0,
        )
        self.metrics = metrics or EngineMetrics()
        self.adapters = AdapterManager(model.adapters, self.metrics)
        self.request_checks = RequestChecks(description, config, self.scoring_model, self.adapters)
        if executor is None:
            executor = make_executor(model, self.renderer_settings.vocab_size)
            if config.self_check:
                SelfCheck(model, self.model_info, self.request_checks, self.renderer, executor, self.tasks).run()
        self.core = EngineCore(
            model,
            config,
            executor,
            self.adapters,
            self.metrics,
            vocab_size=self.renderer_settings.vocab_size,
            min_tokens=0 if self.renderer_settings.accepts_empty else 1,
            on_exit=self._on_thread_exit,
        )
        self.tokenizer_worker = TokenizerWorker(self.renderer, self.core, self._on_thread_exit, self.busy_stages)
        if metrics is None:
            self.metrics.register_queue(self.core.loop.scheduler)
            self.metrics.register_dedup(self.core.dedup, getattr(executor, "prefix_sharing", None))
            self._register_queues()
        self.pid = get_process_id()  # threads do not survive a fork
        self.on_stopped: Callable[[], None] = lambda: None  # called by the thread that stops the engine
        self.tokenizer_worker.thread.start()
        self.core.start()
        logger.info("Supported pooling tasks: %s", ", ".join(self.plan.tasks))

    @classmethod
    @ignore_default_device
    def load(cls, config: EngineConfig, *, trust_callers: bool = False) -> PoolingEngine:
        if config.num_replicas > 1:
            raise LoadError(
                f"{config.num_replicas} replicas need a process each, this one has a single engine; use cenote serve "
                f"--data-parallel-size {config.num_replicas}, or data_parallel_size=1 and a program for each device"
            )
        if config.tensor_parallel_size == 1:
            model = load_model(config)
        else:
            from cenote.distributed.parallel_model import load_parallel_model  # imports torch

            model = load_parallel_model(config)
        try:
            engine = cls(model, config, trust_callers=trust_callers)
        except BaseException:
            if model.ranks is not None:
                model.ranks.close()
            raise
        try:
            route_config = config.for_other_routes()
            for route in engine.model.description.other_routes:
                other = cls(load_model(route_config, route.name), route_config, metrics=engine.metrics)
                engine.routes |= dict.fromkeys(route.roles, other)
        except BaseException:
            engine.stop()
            raise
        return engine

    @property
    def model_config(self) -> ModelConfig:
        return self.model.description.model_config

    @property
    def vllm_config(self) -> VllmConfig:
        """The configuration under its name in vLLM's engine: `llm.llm_engine.vllm_config.model_config`."""
        return VllmConfig(self.model_config)

    def make_model_tokenizer(self) -> ModelTokenizer:
        """Return a copy of the tokenizer for programs and plugins."""
        return make_model_tokenizer(self.model.tokenizer, self.model_config.model, self.renderer_settings.chat_settings)

    def add_adapter(self, name: str, path: str) -> None:
        """Load an adapter from a folder or the hub, unless one of that name is loaded."""
        self.adapters.add(name, path)
        self._update_adapter_info()

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        def load() -> None:  # runs to its end even if the caller is cancelled
            self.adapters.load(name, path, in_place=in_place)
            self._update_adapter_info()

        await self.executors.adapters.run(load)

    async def unload_adapter(self, name: str) -> None:
        self.adapters.unregister(name)
        self._update_adapter_info()
        await self.adapters.free_when_idle(name)

    def _update_adapter_info(self) -> None:
        if (registry := self.adapters.registry) is not None:
            self.model_info = replace(
                self.model_info, adapters=registry.names, external_adapters=dict(registry.added_paths)
            )

    def _register_queues(self) -> None:
        self.metrics.queues |= {
            "tokenizer": lambda: self.tokenizer_worker.num_waiting,
            "scheduler": lambda: len(self.core.loop.scheduler),
            "duplicates": lambda: self.core.dedup.num_waiting_duplicates,
            "images": lambda: self.image_workers.num_waiting,
        }
        for executor in self.executors.all:
            self.metrics.queues[executor.name] = partial(getattr, executor, "num_waiting")
        if (processor := self.io_processor) is not None:
            self.metrics.queues["plugin"] = lambda: processor.num_waiting

    async def collect_metrics(self) -> list[MetricFamily]:
        return self.metrics.registry.snapshot()

    def submit(self, request: PoolRequest, *, caller_waits: bool = False) -> LocalPending:
        """Check a request and queue it.

        With `caller_waits`, a short text may be computed by the calling thread before this method returns.
        """
        if get_process_id() != self.pid:
            raise EngineStopped(
                f"the engine was created in process {self.pid} and cannot be used after fork(); "
                "load the model in this process"
            )
        if self.routes and (route := self.get_route(select_prompt(request, self.model_info).role)) is not self:
            return route.submit(request, caller_waits=caller_waits)
        try:  # no generator in the path of most requests
            state = self.request_checks.prepare(request, self.model_info)
            self.core.admit(partial(self.metrics.on_admit, state))
        except PoolingError as error:
            self.metrics.on_refused(error)
            raise
        state.caller_waits = caller_waits
        try:
            self.tokenizer_worker.add(state)
        except BaseException:  # such as that of Ctrl-C: nobody will wait for the results
            state.future.cancel()
            raise
        return state

    def get_route(self, role: Role | None) -> PoolingEngine:
        """Return the engine that encodes texts of a role."""
        return self if role is None else self.routes.get(role, self)

    @property
    def dead_error(self) -> PoolingError | None:
        return self.core.dead_error

    @property
    def status(self) -> EngineStatus:
        return "ready" if self.dead_error is None else "stopped"

    def measure_speed(self) -> tuple[float, float]:
        """Return the tokens per second while enough wait, 0.0: not known; and for how long the device may hang."""
        loops = [part.core.loop for part in (self, *self.routes.values())]
        return max(loop.rate.tokens_per_s for loop in loops), max(loop.measure_late_s() for loop in loops)

    def find_busy_stage(self) -> tuple[str, float] | None:
        """Return the stage that has been busy for longest with one piece of work, and since when."""
        busy = self.busy_stages.find_oldest()
        started_at = self.core.loop.step_started_at
        if started_at is not None and (busy is None or started_at < busy[1]):
            return "device", started_at
        return busy

    def has_unfinished_requests(self) -> bool:
        """Whether requests are in flight, under its name in vLLM's engine."""
        return bool(self.metrics.requests_in_flight())

    @property
    def is_running(self) -> bool:
        """Whether a thread is alive; after `stop`, one may be while its batch runs."""
        return self.core.is_running or self.tokenizer_worker.thread.is_alive()

    def stop(self, reason: PoolingError | None = None) -> None:
        """Stop the threads and fail all requests in flight."""
        if not self.core.stop(reason or EngineStopped("the engine was stopped before the request finished")):
            return
        self.tokenizer_worker.stop()
        self.on_stopped()
        join_thread(self.tokenizer_worker.thread)
        self.core.close()
        for route in self.routes.values():
            route.stop(reason)
        self.image_workers.close()
        self.executors.close()
        if self.media_loader is not None:
            self.media_loader.close()

    def _on_thread_exit(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, PoolingError):
            self.stop(error)
        else:
            self.stop(make_internal_error("the engine crashed", error, EngineStopped))

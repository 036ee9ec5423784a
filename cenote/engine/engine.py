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
from cenote.engine.adapter_manager import Lending
from cenote.engine.engine_loop import Loop
from cenote.engine.engine_metrics import Records
from cenote.engine.execution.executor import Executor, LocalExecutor
from cenote.engine.execution.gpu_executor import GPUExecutor
from cenote.engine.execution.tensor_executor import TensorExecutor
from cenote.engine.execution.token_budget import token_budget
from cenote.engine.execution.warmup import warm_up
from cenote.engine.model_info import about
from cenote.engine.preprocessing.image_workers import Looking
from cenote.engine.preprocessing.renderer_factory import media_policy, renderer_of, seeing_of, tokenizer_of
from cenote.engine.preprocessing.sub_requests import Portion, answered, portions, submitted
from cenote.engine.preprocessing.tokenizer_worker import Intake
from cenote.engine.request_state import Answers, Pending, Wish
from cenote.engine.result_cache_factory import result_cache
from cenote.engine.scheduler import Scheduler
from cenote.engine.tasks.entity_recognizer import Tagger, not_a_tagger
from cenote.engine.tasks.io_processor import NO_PLUGIN, load_processor
from cenote.engine.tasks.scoring import Comparing, finished
from cenote.engine.watchdog import Watchdog
from cenote.errors import BadRequest, EngineStopped, Overloaded, PoolingError, Unsupported
from cenote.inputs.limits import Limits, check_lengths
from cenote.inputs.listwise_prompt import as_ranking
from cenote.inputs.media.loader import MediaLoader
from cenote.loading.load import LoadedModel, load
from cenote.loading.rerankers import template_text
from cenote.loading.tensor_model import TensorModel
from cenote.pooling.pooler import Ask
from cenote.protocol.input_types import Input, Ranking, input_size
from cenote.protocol.prompt_selection import meaning
from cenote.protocol.requests import (
    EntityRequest,
    PluginRequest,
    PoolingParams,
    PoolRequest,
    Processed,
    ScoreRequest,
    Tagged,
    Task,
    Tokenized,
)
from cenote.scoring.scorer import Scorable, Scores
from cenote.utils.metrics import Family

logger = logging.getLogger("cenote")

Result = TypeVar("Result")
OnProgress = Callable[[Pending], None]

# how many batches wait ready while one runs; the more, the better lengths can be matched
BATCHES_AHEAD = 16
# how long a stop waits for the batch that is running
JOIN_S = 5.0
# how often the rest of a request with many images looks for room
ROOM_S = 0.02


class PoolingEngine:
    """One loaded model and the threads that serve it."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        executor: Executor | None = None,
        *,
        trusts_callers: bool = False,
    ) -> None:
        """`trusts_callers`: they are this very program, and may name any of its files."""
        self.model = model
        self.config = config
        description = model.description
        self.plan = description.plan
        self.max_model_len = description.max_length.value
        self.tokenizer = tokenizer_of(model)
        self.template = template_text(config.chat_template, "chat_template")
        self.media = MediaLoader(media_policy(config, trusts_callers=trusts_callers))
        seeing = seeing_of(model, config, self.tokenizer, self.media)
        self.looking = Looking(seeing, config.max_waiting_chars)
        self.renderer = renderer_of(model, config, self.tokenizer, self.template, seeing)
        self.scorable = Scorable(
            description.name,
            self.plan.tasks,
            description.num_labels,
            model.tokenizer.pad_token_id,
            description.score_type,
            self.max_model_len,
        )
        self.comparing = Comparing(self.scorable, self.renderer, description.late_interaction is not None)
        self.tagger = Tagger(model, self.tokenizer) if Tagger.fits(model) else None
        self.processor = load_processor(config, description, model.tokenizer.tokenizer)
        plugin = self.processor.name if self.processor else None
        self.about = about(model, self.scorable, plugin=plugin, chat_template=self.template)
        self.records = Records()
        self.lending = Lending(model.adapters, self.records)
        self.cache = result_cache(description, config, self.records.metrics)
        device = description.device.value
        budget = config.max_num_batched_tokens or token_budget(model.backbone, device)
        scheduler = Scheduler(budget, config.max_num_seqs, by_priority=config.scheduling_policy == "priority")
        self.records.watch_queue(lambda: scheduler.waiting_tokens)
        self.loop = Loop(
            scheduler,
            executor or self._executor(device),
            self.records,
            self._thread_ended,
        )
        self.intake = Intake(
            self.renderer,
            self.loop,
            max_model_len=self.max_model_len,
            token_budget=budget,
            max_waiting_tokens=BATCHES_AHEAD * budget,
            on_end=self._thread_ended,
            cache=self.cache,
            keepable=self.lending.is_own,
        )
        self.records.watch_sharing(self.intake.sharing, getattr(self.loop.executor, "stems", None))
        self.watchdog = Watchdog(lambda: self.loop.step_began, config.step_timeout_s, self._thread_ended)
        self.home = os.getpid()  # threads do not follow a fork
        self.dead: PoolingError | None = None
        self._usual_asks: dict[tuple[Task, ...], tuple[Ask, ...]] = {}  # of requests without parameters, by tasks
        self._lock = threading.Lock()
        for part in (self.loop, self.intake, self.watchdog):
            part.thread.start()
        logger.info("Supported pooling tasks: %s", ", ".join(self.plan.tasks))

    def _executor(self, device: torch.device) -> Executor:
        """The model where it is; on a GPU, used once before anybody waits for what is compiled on first use."""
        if isinstance(self.model.backbone, TensorModel):
            return TensorExecutor(self.model.backbone)
        if device.type != "cuda":
            return LocalExecutor(self.model.backbone, self.model.pooler, device)
        executor = GPUExecutor(self.model.backbone, self.model.pooler, device)
        ask = Ask(self.model.description.default_task, self.plan.options(self.model.description.default_task, None))
        warm_up(executor, ask, self.max_model_len, self.renderer.vocab_size)
        return executor

    @classmethod
    def load(cls, config: EngineConfig, *, trusts_callers: bool = False) -> PoolingEngine:
        return cls(load(config), config, trusts_callers=trusts_callers)

    async def pool(self, request: PoolRequest, against: Sequence[Tensor] | None = None) -> Answers:
        """Answers in the order of the inputs. A caller that is cancelled takes its waiting work along.

        With the rows of a query for every input, answers are numbers: how well the input matches them.
        """
        several = portions(request, len(self.looking.places(request)), against, self.looking.at_once)
        if len(several) == 1:
            pending = self.submit(await self.looking.read(request), bounded=True, against=against)
            return await self._answers(pending)

        async def answers(portion: Portion, ready: PoolRequest) -> Answers:
            first = portion.start == 0
            if not first:  # it was let in, and is not turned away half-way
                await self._until_room(sum(map(input_size, ready.inputs)))
            return await self._answers(self.submit(ready, bounded=first, against=portion.against))

        return await answered(several, self.looking.read, answers, request.timing)

    def pool_sync(
        self, request: PoolRequest, on_progress: OnProgress | None = None, against: Sequence[Tensor] | None = None
    ) -> Answers:
        found: Answers = []
        for portion, pending in self.submitted(request, against):
            with portion.named():
                found += pending.wait(on_progress)
        return found

    async def score(self, request: ScoreRequest) -> Scores:
        """A score for every pair, in the order of the documents."""
        return await self.comparing.score(request, self.pool)

    def score_sync(self, request: ScoreRequest, on_progress: OnProgress | None = None) -> Scores:
        return self.comparing.score_sync(request, lambda part, against: self.pool_sync(part, on_progress, against))

    async def entities(self, request: EntityRequest) -> list[Tagged]:
        """The entities of every text, in the order of the texts."""
        if self.tagger is None:
            raise not_a_tagger(self.about.model)
        return await self.tagger.find(request, self.pool, asyncio.to_thread)

    def entities_sync(self, request: EntityRequest, on_progress: OnProgress | None = None) -> list[Tagged]:
        async def pool(part: PoolRequest) -> Answers:
            return self.pool_sync(part, on_progress)

        async def at_once(work: Callable[[], Any]) -> Any:
            return work()

        if self.tagger is None:
            raise not_a_tagger(self.about.model)
        return finished(self.tagger.find(request, pool, at_once))

    async def tokenize(
        self,
        item: Input,
        *,
        add_special_tokens: bool = True,
        strings: bool = False,
        media_kwargs: Mapping[str, Any] | None = None,
    ) -> Tokenized:
        """The ids of a prompt, whatever its length."""
        item = await self.looking.read_one(item, media_kwargs or {})

        def tokenized() -> Tokenized:
            ids = self.renderer.tokenize(item, add_special_tokens=add_special_tokens)
            return Tokenized(ids, self.tokenizer.strings(ids) if strings else None)

        return await asyncio.to_thread(tokenized)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await asyncio.to_thread(self.tokenizer.detokenize, token_ids)

    async def process(self, request: PluginRequest) -> Processed:
        if self.processor is None:
            raise Unsupported(NO_PLUGIN)
        processed = Processed()

        async def pool(part: PoolRequest) -> Answers:
            answers = await self.pool(replace(part, tenant=request.tenant))
            processed.count(answers)
            request.timing.beside(part.timing)
            return answers

        processed.data = await self.processor.process(
            request.data,
            pool,
            request_id=request.request_id,
            priority=request.priority,
            tokenization=request.tokenization,
        )
        return processed

    def add_adapter(self, name: str, place: str) -> None:
        """Load an adapter from a folder or the hub; one of that name that is there already stays."""
        self.lending.add(name, place)
        self._tell_adapters()

    async def load_adapter(self, name: str, place: str, *, in_place: bool = False) -> None:
        def load() -> None:  # to its end, even if whoever asked has gone
            self.lending.load(name, place, in_place=in_place)
            self._tell_adapters()

        await asyncio.to_thread(load)

    async def unload_adapter(self, name: str) -> None:
        self.lending.hide(name)
        self._tell_adapters()
        await asyncio.to_thread(self.lending.forget, name)

    def _tell_adapters(self) -> None:
        if (loaded := self.lending.loaded) is not None:
            self.about = replace(self.about, adapters=loaded.names, added_adapters=dict(loaded.added))

    async def statistics(self) -> list[Family]:
        return self.records.metrics.snapshot()

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self.records.http(handler, method, status, seconds)

    def submitted(
        self, request: PoolRequest, against: Sequence[Tensor] | None = None
    ) -> Iterator[tuple[Portion, Pending]]:
        """The request on its way; in portions, one behind the other, where it has many images."""
        several = portions(request, len(self.looking.places(request)), against, self.looking.at_once)
        return submitted(
            several, self.looking.read_sync, lambda portion, ready: self.submit(ready, against=portion.against)
        )

    async def _answers(self, pending: Pending) -> Answers:
        await asyncio.wrap_future(pending.future)
        return pending.answers()

    def submit(
        self, request: PoolRequest, *, bounded: bool = False, against: Sequence[Tensor] | None = None
    ) -> Pending:
        """Check a request against the model and let it in; where strangers ask, only while there is room.

        With the rows of a query for every input, answers are numbers: how well the input matches them.
        """
        if os.getpid() != self.home:
            raise EngineStopped(f"this engine belongs to process {self.home}; load the model after forking")
        for task in (request.task, *request.also):
            self.check_task(task)
        if not len(request.inputs):
            raise BadRequest("You must pass at least one prompt", param="input")
        if self.scorable.preferred == "listwise" and not all(isinstance(item, Ranking) for item in request.inputs):
            request = replace(request, inputs=[as_ranking(request.inputs, self.about.architecture)])
        # the mean over chunks is for one vector; what else is asked needs the text in one piece
        limits = self._limits(request.task) if not request.also else Limits(self.max_model_len)
        check_lengths(request.tokenization, limits)
        asks = self._asks(request)
        if against is not None:
            asks = [tuple(ask._replace(compared=True) for ask in each) for each in asks]
        meant = meaning(request, self.about)
        if meant.role != request.role:
            request = replace(request, role=meant.role)
        asked = meant.adapter if request.adapter is None else request.adapter
        adapters = self.lending.chosen(asked, len(request.inputs))
        wishes = [Wish(*each) for each in zip(*_equally_many(asks, adapters), strict=True)]
        pending = Pending(request, wishes, limits, meant.prompt, against)
        with self._lock:
            if self.dead is not None:
                raise self.dead.with_traceback(None)  # or the same error grows longer with every call
            if bounded:
                self._check_room(pending.num_chars)
            self.records.admitted(pending)
        self.intake.add(pending)
        return pending

    @property
    def is_running(self) -> bool:
        """Whether a thread is still at work: after `stop`, one whose batch takes long."""
        return any(part.thread.is_alive() for part in (self.loop, self.intake, self.watchdog))

    def stop(self, reason: PoolingError | None = None) -> None:
        """End the threads; whoever still waits is told so."""
        with self._lock:
            if self.dead is not None:
                return
            self.dead = reason or EngineStopped("the engine was stopped before the answer came")
            in_flight = self.records.everybody()
        parts = (self.loop, self.intake, self.watchdog)
        for part in parts:
            part.stop()
        for pending in in_flight:
            pending.fail_all(self.dead)
        # a thread still inside torch when the interpreter ends brings the whole process down
        for part in parts:
            if part.thread is not threading.current_thread():
                part.thread.join(timeout=JOIN_S)
        self.looking.close()
        self.media.close()
        if self.cache is not None:
            self.cache.close()

    def _thread_ended(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, PoolingError):
            self.stop(error)
        else:
            self.stop(EngineStopped(f"the engine died: {type(error).__name__}: {error}"))

    def _check_room(self, num_chars: int) -> None:
        """Refuse what would have to wait behind too much; alone, any request is welcome."""
        if not self._has_room(num_chars):
            raise Overloaded(
                f"requests with {self.records.num_chars} characters are being worked on, and "
                f"{self.config.max_waiting_chars} is the most (--max-waiting-chars); try again soon"
            )

    def _has_room(self, num_chars: int) -> bool:
        waiting = self.records.num_chars
        return not waiting or waiting + num_chars <= self.config.max_waiting_chars

    async def _until_room(self, num_chars: int) -> None:
        while self.dead is None and not self._has_room(num_chars):
            await asyncio.sleep(ROOM_S)

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
        if convert == "classify" and self.model.description.entry.form not in ("sequence", "reward"):
            advice = "It has no classifier: load a model that has one, such as a ...ForSequenceClassification."
        raise Unsupported(
            f"{wanted} API is not supported by this model. {advice} Supported tasks: {self.plan.tasks}", param="task"
        )

    def _asks(self, request: PoolRequest) -> Sequence[tuple[Ask, ...]]:
        """One for all inputs, or one each."""
        params = request.params
        tasks = (request.task, *request.also)
        if params is None:  # as in nearly all requests
            if tasks not in self._usual_asks:
                self._usual_asks[tasks] = self._asks_of_one(tasks, None)
            return [self._usual_asks[tasks]]
        if isinstance(params, PoolingParams):
            return [self._asks_of_one(tasks, params)]
        if not isinstance(params, list | tuple) or not all(isinstance(each, PoolingParams) for each in params):
            raise BadRequest("pooling_params is one PoolingParams for all prompts, or a list with one for each")
        if len(params) != len(request.inputs):
            raise BadRequest(
                f"The lengths of prompts ({len(request.inputs)}) and params ({len(params)}) must be the same."
            )
        return [self._asks_of_one(tasks, each) for each in params]

    def _asks_of_one(self, tasks: Sequence[Task], params: PoolingParams | None) -> tuple[Ask, ...]:
        task = "&".join(tasks)
        names: tuple[str | None, ...] = (None, task)
        if task == "classify" and "cross-encoder" in self.scorable.score_types:
            names = (*names, "score")  # the older name of a cross-encoder's classify
        if params is not None and params.task not in names:
            raise BadRequest(
                f"You cannot overwrite param.task={params.task!r} with pooling_task={task!r}!", param="task"
            )
        if len(tasks) == 1:
            return (Ask(tasks[0], self.plan.options(tasks[0], params)),)
        return tuple(map(Ask, tasks, self.plan.options_of_all(tasks, params)))

    def _limits(self, task: Task) -> Limits:
        pooler = self.config.pooler_config
        if task != "embed" or not (pooler.enable_chunked_processing or pooler.max_embed_len):
            return Limits(self.max_model_len)
        if not pooler.enable_chunked_processing:
            assert pooler.max_embed_len is not None, "one of the two is set"
            if pooler.max_embed_len >= self.max_model_len:
                return Limits(self.max_model_len)
            return Limits(pooler.max_embed_len, "max_embed_len")
        if pooler.max_embed_len is None:
            return Limits(self.max_model_len, bounded=False, chunked=True)
        return Limits(pooler.max_embed_len, "max_embed_len", chunked=True)


def _equally_many(*lists: Sequence[Any]) -> list[Sequence[Any]]:
    """One for all becomes one each, where the other list has one each."""
    most = max(map(len, lists))
    return [each if len(each) == most else list(each) * most for each in lists]

"""One request to an IO processor plugin: its data becomes prompts, they are pooled, and it makes one result of them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

import tokenizers

from cenote.config.engine import EngineConfig
from cenote.engine.tasks.plugin_requests import Work
from cenote.errors import BadRequest, LoadError, PoolingError, Unsupported
from cenote.inputs.prompt_parsing import as_inputs
from cenote.loading.describe import Description, ModelConfig
from cenote.outputs import PoolingRequestOutput
from cenote.plugins.discovery import start_plugin
from cenote.plugins.io_processor import method, overrides
from cenote.plugins.json_values import plain
from cenote.protocol.requests import Pooled, PoolingParams, PoolRequest, Task, Tokenization

logger = logging.getLogger("cenote")

Result = TypeVar("Result")
Answers = Sequence[Pooled | PoolingError]
Given = PoolingParams | Sequence[PoolingParams] | None  # one for all prompts, or one each

NO_PLUGIN = (
    "No IOProcessor plugin installed. Install a package that has one and name it with --io-processor-plugin; "
    "docs/plugins.md explains how to write one, and examples/near_duplicates is one."
)
NO_DATA = (
    "The 'data' field of the prompt is expected to contain the prompt data and it cannot be None. "
    "Refer to the documentation of the IOProcessor in use for more details."
)


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """What a plugin is told about the model at its start."""

    model_config: ModelConfig


class PluginRenderer:
    """What a plugin may ask about texts."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._of_engine = tokenizer

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """A copy, so that what a plugin does to it does nothing to the engine."""
        return tokenizers.Tokenizer.from_str(self._of_engine.to_str())

    def get_tokenizer(self) -> tokenizers.Tokenizer:
        return self.tokenizer


def load_processor(config: EngineConfig, description: Description, tokenizer: tokenizers.Tokenizer) -> Processor | None:
    """The plugin that the option selects, else the one config.json names; most models have none."""
    named = description.config.get("io_processor_plugin")
    name = config.io_processor_plugin or named
    if not name:
        return None
    source = description.config.source
    if not isinstance(name, str):
        raise LoadError(f"{source}: io_processor_plugin is {name!r}, not the name of a plugin")
    facts = PluginConfig(description.model_config)
    try:
        plugin = start_plugin(name, facts, PluginRenderer(tokenizer))
    except LoadError as error:
        if config.io_processor_plugin:
            raise
        without = 'hf_overrides={"io_processor_plugin": null} loads the model without it'
        raise LoadError(f"{error.message} ({source} names it; {without})") from error
    logger.info("IO processor plugin: %s", name)
    return Processor(name, plugin, description)


class Processor:
    """A plugin at work. Its blocking code runs on one thread, a call at a time, as it would on an event loop."""

    def __init__(self, name: str, plugin: Any, description: Description) -> None:
        self.name = name
        self.plugin = plugin
        self.tasks = description.plan.tasks
        self.default_task = description.default_task
        self.is_cross_encoder = "classify" in self.tasks and description.num_labels == 1
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cenote-plugin")
        self._offline = threading.RLock()

    async def process(
        self,
        data: object,
        pool: Callable[[PoolRequest], Awaitable[Answers]],
        *,
        request_id: str,
        priority: int = 0,
        tokenization: Tokenization | None = None,
    ) -> Any:
        """The result in plain values, for a server to send."""
        if data is None:
            raise BadRequest(NO_DATA, param="data")
        parsed, work = await self._read_online(data, request_id, tokenization, priority)
        answers = await asyncio.gather(*map(pool, work.requests))
        return await self._write_online(parsed, work, answers, request_id)

    def process_sync(
        self,
        data: object,
        pool: Callable[[PoolRequest], Answers],
        *,
        params: Given = None,
        tokenization: Tokenization | None = None,
    ) -> Any:
        """The plugin's own object, for a program that asks in this process."""
        if data is None:
            raise BadRequest(NO_DATA, param="data")
        with self._offline:  # plugins know requests by their ids, and these have none
            parsed, work = self._read(data, params, None, tokenization)
            return self._write(parsed, work.outputs([*map(pool, work.requests)]), None)

    def _read(
        self, data: object, given: Given, request_id: str | None, tokenization: Tokenization | None, priority: int = 0
    ) -> tuple[Any, Work]:
        parsed = self._parse(data, request_id)
        with self._blamed("pre_process", request_id, refusing=True):
            prompts = method(self.plugin, "pre_process")(parsed, request_id=request_id)
        return parsed, self._work(prompts, given, request_id, tokenization, priority)

    async def _read_online(
        self, data: object, request_id: str, tokenization: Tokenization | None, priority: int
    ) -> tuple[Any, Work]:
        if not overrides(self.plugin, "pre_process_async"):
            return await self._aside(self._read, data, None, request_id, tokenization, priority)
        parsed = await self._aside(self._parse, data, request_id)
        with self._blamed("pre_process_async", request_id, refusing=True):
            prompts = await self.plugin.pre_process_async(parsed, request_id=request_id)
        # at once: what a plugin noted for the parameters must not become another request's
        return parsed, self._work(prompts, None, request_id, tokenization, priority)

    def _work(
        self, prompts: Any, given: Given, request_id: str | None, tokenization: Tokenization | None, priority: int
    ) -> Work:
        inputs = as_inputs(prompts)
        params = self._merge(given, len(inputs), request_id)
        return Work.of(inputs, params, [self._tasks(each.task) for each in params], tokenization, priority)

    def _parse(self, data: object, request_id: str | None) -> Any:
        with self._blamed("parse_data", request_id, refusing=True):
            return method(self.plugin, "parse_data")(data)

    def _merge(self, given: Given, count: int, request_id: str | None) -> list[PoolingParams]:
        """The parameters of every prompt; the plugin sees copies, which it may change."""
        merge = method(self.plugin, "merge_pooling_params")
        if given is None:
            with self._blamed("merge_pooling_params", request_id, refusing=True):
                return [_as_params(merge())] * count
        wanted: Sequence[Any] = given if isinstance(given, list | tuple) else [given] * count
        if not all(isinstance(params, PoolingParams) for params in wanted):
            raise BadRequest("pooling_params is one PoolingParams for all prompts, or a list with one for each")
        if len(wanted) != count:
            raise BadRequest(f"The lengths of prompts ({count}) and params ({len(wanted)}) must be the same.")
        with self._blamed("merge_pooling_params", request_id, refusing=True):
            return [_as_params(merge(params.clone())) for params in wanted]

    def _tasks(self, name: str | None) -> list[Task]:
        if name is None or name == "plugin":
            return [self.default_task]
        wanted = ["classify" if part == "score" and self.is_cross_encoder else part for part in name.split("&")]
        for part in wanted:
            if part not in self.tasks:
                raise Unsupported(
                    f"the IO processor plugin {self.name!r} asks for the task {name!r}, which this model does not "
                    f"have. Supported tasks: {self.tasks}",
                    param="task",
                )
        return list(dict.fromkeys(wanted))  # type: ignore[arg-type]  # all of them are tasks of the model

    def _write(self, parsed: Any, outputs: Sequence[PoolingRequestOutput], request_id: str | None) -> Any:
        with self._blamed("post_process", request_id):
            post_process = method(self.plugin, "post_process")
            return post_process(outputs, request_id=request_id, **_told(post_process, parsed))

    async def _write_online(self, parsed: Any, work: Work, answers: Sequence[Answers], request_id: str) -> Any:
        def outputs() -> list[PoolingRequestOutput]:
            return work.outputs(answers, f"{request_id}-")

        if not overrides(self.plugin, "post_process_async"):
            return await self._aside(lambda: self._reply(self._write(parsed, outputs(), request_id), request_id))
        with self._blamed("post_process_async", request_id):
            post_process = self.plugin.post_process_async
            told = _told(post_process, parsed)
            result = await post_process(_one_by_one(outputs()), request_id=request_id, **told)
        return await self._aside(self._reply, result, request_id)

    def _reply(self, result: Any, request_id: str) -> Any:
        """In plain values, and without the wrapping that older plugins put around."""
        older = getattr(self.plugin, "output_to_response", None)
        if callable(older):
            with self._blamed("output_to_response", request_id):
                result = older(result)
            result = result.get("data", result) if isinstance(result, Mapping) else getattr(result, "data", result)
        try:
            return plain(result)
        except (TypeError, ValueError, RecursionError) as error:
            what = f": {error}" if isinstance(error, TypeError) else f" ({type(error).__name__})"
            raise PoolingError(f"the IO processor plugin {self.name!r} returned what cannot be sent{what}") from None

    async def _aside(self, function: Callable[..., Result], *args: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    @contextmanager
    def _blamed(self, step: str, request_id: str | None, *, refusing: bool = False) -> Iterator[None]:
        """What a plugin raises, as errors of ours: before the model runs it may refuse its input, later it failed."""
        try:
            yield
        except PoolingError:
            raise
        except Exception as error:
            if refusing and isinstance(error, ValueError | TypeError):
                raise BadRequest(str(error) or type(error).__name__, param="data") from error
            failure = PoolingError(f"the IO processor plugin {self.name!r} failed in {step} ({type(error).__name__})")
            if request_id is None:
                raise failure from error
            # the places without the message, which may quote what the caller sent
            places = "".join(traceback.format_tb(error.__traceback__))
            logger.error("%s, request %s\n%s", failure.message, request_id, places)
            raise failure from None


def _as_params(given: Any) -> PoolingParams:
    """Ours, or those of the reference where a plugin brings its own class."""
    if isinstance(given, PoolingParams):
        return given
    known = [item.name for item in fields(PoolingParams) if hasattr(given, item.name)]
    if "task" not in known:
        raise PoolingError(f"merge_pooling_params of the plugin returned {type(given).__name__}, not PoolingParams")
    return PoolingParams(**{name: getattr(given, name) for name in known})


def _told(function: Callable[..., Any], parsed: Any) -> dict[str, Any]:
    """What `parse_data` returned, for those who take it: then nothing has to be kept between the steps."""
    parameters = inspect.signature(function).parameters
    takes_it = "prompt" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {"prompt": parsed} if takes_it else {}


async def _one_by_one(outputs: Sequence[PoolingRequestOutput]) -> AsyncIterator[tuple[int, PoolingRequestOutput]]:
    for numbered in enumerate(outputs):
        yield numbered

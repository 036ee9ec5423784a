"""Run IO processor plugins: pre-process data into prompts, pool them, post-process the results."""

from __future__ import annotations

import inspect
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from typing import Any, TypeVar

from cenote.config.engine import EngineConfig
from cenote.config.vllm_config import VllmConfig
from cenote.engine.request_checks import check_params_list
from cenote.engine.tasks.plugin_requests import PluginPoolRequests
from cenote.errors import BadRequest, LoadError, PoolingError, Unsupported
from cenote.inputs.model_tokenizer import ModelTokenizer
from cenote.inputs.prompt_parsing import parse_prompts
from cenote.loading.model_description import ModelDescription
from cenote.outputs import PoolingRequestOutput
from cenote.plugins.discovery import load_plugin
from cenote.plugins.io_processor import get_method, has_override
from cenote.plugins.json_values import to_json_value
from cenote.protocol.params import PoolingParams, Task, TokenizationParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from cenote.protocol.scheduling import DEFAULT_SCHEDULING, SchedulingParams
from cenote.utils.async_utils import gather_or_cancel
from cenote.utils.bounded_executor import BoundedExecutor
from cenote.utils.busy_stages import BusyStages

logger = logging.getLogger("cenote")

T = TypeVar("T")
PoolResultSequence = Sequence[PoolResult | PoolingError]
PoolingParamsArg = PoolingParams | Sequence[PoolingParams] | None  # one for all prompts, or one per prompt

# requests that wait for the plugin's thread; each may take seconds
MAX_WAITING_CALLS = 256

NO_DATA_MESSAGE = (
    "The 'data' field of the prompt is expected to contain the prompt data and it cannot be None. "
    "Refer to the documentation of the IOProcessor in use for more details."
)


class PluginRenderer:
    """The renderer object that plugins get at construction."""

    def __init__(self, make_tokenizer: Callable[[], ModelTokenizer]) -> None:
        self._make_tokenizer = make_tokenizer

    @cached_property
    def tokenizer(self) -> ModelTokenizer:
        """A copy of the tokenizer: changing it does not affect the engine."""
        return self._make_tokenizer()

    def get_tokenizer(self) -> ModelTokenizer:
        return self.tokenizer


def load_io_processor(
    config: EngineConfig,
    description: ModelDescription,
    make_tokenizer: Callable[[], ModelTokenizer],
    busy_stages: BusyStages | None = None,
) -> IOProcessorRunner | None:
    """Load the plugin named by --io-processor-plugin, else the one in config.json; None if there is none."""
    name = config.io_processor_plugin or description.config.get("io_processor_plugin")
    if not name:
        return None
    source = description.config.source
    if not isinstance(name, str):
        raise LoadError(f"{source}: io_processor_plugin must be the name of a plugin, got {name!r}")
    try:
        plugin = load_plugin(name, VllmConfig(description.model_config), PluginRenderer(make_tokenizer))
    except LoadError as error:
        if config.io_processor_plugin:
            raise
        advice = 'hf_overrides={"io_processor_plugin": null} loads the model without it'
        raise LoadError(f"{error.message} (required by {source}; {advice})") from error
    logger.info("IO processor plugin: %s", name)
    return IOProcessorRunner(name, plugin, description, busy_stages)


class IOProcessorRunner:
    """Run one plugin. Its synchronous code runs in one thread, one call at a time, as it would on an event loop."""

    def __init__(
        self, name: str, plugin: Any, description: ModelDescription, busy_stages: BusyStages | None = None
    ) -> None:
        self.busy_stages = busy_stages or BusyStages()
        self.name = name
        self.plugin = plugin
        self.tasks = description.plan.tasks
        self.default_task = description.default_task
        self.is_cross_encoder = "classify" in self.tasks and description.num_labels == 1
        self._executor = BoundedExecutor("plugin", num_threads=1, max_waiting=MAX_WAITING_CALLS)
        self._sync_lock = threading.RLock()

    @property
    def num_waiting(self) -> int:
        """The number of calls that wait for the plugin's thread."""
        return self._executor.num_waiting

    async def process(
        self,
        data: object,
        pool: Callable[[PoolRequest], Awaitable[PoolResultSequence]],
        *,
        request_id: str,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        tokenization: TokenizationParams | None = None,
    ) -> Any:
        """Return the result as a JSON value, for a server to send."""
        if data is None:
            raise BadRequest(NO_DATA_MESSAGE, param="data")
        parsed, requests = await self._preprocess_async(data, request_id, tokenization, scheduling)
        results = await gather_or_cancel(map(pool, requests.requests))
        return await self._postprocess_async(parsed, requests, results, request_id)

    def process_sync(
        self,
        data: object,
        pool: Callable[[PoolRequest], PoolResultSequence],
        *,
        params: PoolingParamsArg = None,
        tokenization: TokenizationParams | None = None,
    ) -> Any:
        """Return the plugin's own object, for callers in this process."""
        if data is None:
            raise BadRequest(NO_DATA_MESSAGE, param="data")
        with self._sync_lock:  # plugins tell requests apart by their id, and these have none
            parsed, requests = self._preprocess(data, params, None, tokenization)
            return self._postprocess(parsed, requests.make_outputs([*map(pool, requests.requests)]), None)

    def _preprocess(
        self,
        data: object,
        params: PoolingParamsArg,
        request_id: str | None,
        tokenization: TokenizationParams | None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> tuple[Any, PluginPoolRequests]:
        parsed = self._parse_data(data, request_id)
        with self._wrap_plugin_errors("pre_process", request_id, can_reject=True):
            prompts = get_method(self.plugin, "pre_process")(parsed, request_id=request_id)
        return parsed, self._make_requests(prompts, params, request_id, tokenization, scheduling)

    async def _preprocess_async(
        self, data: object, request_id: str, tokenization: TokenizationParams | None, scheduling: SchedulingParams
    ) -> tuple[Any, PluginPoolRequests]:
        if not has_override(self.plugin, "pre_process_async"):
            return await self._run_first(self._preprocess, data, None, request_id, tokenization, scheduling)
        parsed = await self._run_first(self._parse_data, data, request_id)
        with self._wrap_plugin_errors("pre_process_async", request_id, can_reject=True):
            prompts = await self.plugin.pre_process_async(parsed, request_id=request_id)
        # without an await in between: a plugin may store state in pre_process that merge_pooling_params reads
        return parsed, self._make_requests(prompts, None, request_id, tokenization, scheduling)

    def _make_requests(
        self,
        prompts: Any,
        params_arg: PoolingParamsArg,
        request_id: str | None,
        tokenization: TokenizationParams | None,
        scheduling: SchedulingParams,
    ) -> PluginPoolRequests:
        inputs = parse_prompts(prompts)
        params = self._merge_params(params_arg, len(inputs), request_id)
        return PluginPoolRequests.from_prompts(
            inputs, params, [self._resolve_tasks(item.task) for item in params], tokenization, scheduling
        )

    def _parse_data(self, data: object, request_id: str | None) -> Any:
        with self._wrap_plugin_errors("parse_data", request_id, can_reject=True):
            return get_method(self.plugin, "parse_data")(data)

    def _merge_params(
        self, params_arg: PoolingParamsArg, num_prompts: int, request_id: str | None
    ) -> list[PoolingParams]:
        """Return the params of every prompt; the plugin gets copies, which it may change."""
        merge = get_method(self.plugin, "merge_pooling_params")
        if params_arg is None:
            with self._wrap_plugin_errors("merge_pooling_params", request_id, can_reject=True):
                return [_to_pooling_params(merge())] * num_prompts
        if not isinstance(params_arg, list | tuple):
            params_arg = [params_arg] * num_prompts  # type: ignore[list-item]  # checked below
        params_list = check_params_list(params_arg, num_prompts)
        with self._wrap_plugin_errors("merge_pooling_params", request_id, can_reject=True):
            return [_to_pooling_params(merge(params.clone())) for params in params_list]

    def _resolve_tasks(self, name: str | None) -> list[Task]:
        if name is None or name == "plugin":
            return [self.default_task]
        tasks = ["classify" if task == "score" and self.is_cross_encoder else task for task in name.split("&")]
        for task in tasks:
            if task not in self.tasks:
                raise Unsupported(
                    f"the IO processor plugin {self.name!r} requested the task {name!r}, which this model does not "
                    f"support. Supported tasks: {self.tasks}",
                    param="task",
                )
        return list(dict.fromkeys(tasks))  # type: ignore[arg-type]  # all of them are tasks of the model

    def _postprocess(self, parsed: Any, outputs: Sequence[PoolingRequestOutput], request_id: str | None) -> Any:
        with self._wrap_plugin_errors("post_process", request_id):
            post_process = get_method(self.plugin, "post_process")
            return post_process(outputs, request_id=request_id, **_parsed_kwargs(post_process, parsed))

    async def _postprocess_async(
        self, parsed: Any, requests: PluginPoolRequests, results: Sequence[PoolResultSequence], request_id: str
    ) -> Any:
        def make_outputs() -> list[PoolingRequestOutput]:
            return requests.make_outputs(results, f"{request_id}-")

        if not has_override(self.plugin, "post_process_async"):
            return await self._run_in_thread(
                lambda: self._to_response(self._postprocess(parsed, make_outputs(), request_id), request_id)
            )
        with self._wrap_plugin_errors("post_process_async", request_id):
            post_process = self.plugin.post_process_async
            kwargs = _parsed_kwargs(post_process, parsed)
            result = await post_process(_iterate_async(make_outputs()), request_id=request_id, **kwargs)
        return await self._run_in_thread(self._to_response, result, request_id)

    def _to_response(self, result: Any, request_id: str) -> Any:
        """Convert a result to a JSON value; unwrap the response object that older plugins return."""
        output_to_response = getattr(self.plugin, "output_to_response", None)
        if callable(output_to_response):
            with self._wrap_plugin_errors("output_to_response", request_id):
                result = output_to_response(result)
            result = result.get("data", result) if isinstance(result, Mapping) else getattr(result, "data", result)
        try:
            return to_json_value(result)
        except (TypeError, ValueError, RecursionError) as error:
            reason = f": {error}" if isinstance(error, TypeError) else f" ({type(error).__name__})"
            raise PoolingError(
                f"the IO processor plugin {self.name!r} returned a value that cannot be sent as JSON{reason}"
            ) from None

    async def _run_first(self, function: Callable[..., T], *args: Any) -> T:
        """Run the first step of a request, which is refused if too many wait."""
        return await self._executor.run(self._run_tracked, function, *args)

    async def _run_in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await self._executor.run_admitted(self._run_tracked, function, *args)

    def _run_tracked(self, function: Callable[..., T], *args: Any) -> T:
        with self.busy_stages.track("plugin"):
            return function(*args)

    @contextmanager
    def _wrap_plugin_errors(self, step: str, request_id: str | None, *, can_reject: bool = False) -> Iterator[None]:
        """Convert exceptions of a plugin; `can_reject`: ValueError and TypeError mean that the input is invalid."""
        try:
            yield
        except PoolingError:
            raise
        except Exception as error:
            if can_reject and isinstance(error, ValueError | TypeError):
                raise BadRequest(str(error) or type(error).__name__, param="data") from error
            failure = PoolingError(f"the IO processor plugin {self.name!r} failed in {step} ({type(error).__name__})")
            if request_id is None:
                raise failure from error
            # only the stack: the message of the exception may contain data of the client
            stack = "".join(traceback.format_tb(error.__traceback__))
            logger.error("%s, request %s\n%s", failure.message, request_id, stack)
            raise failure from None


def _to_pooling_params(params: Any) -> PoolingParams:
    """Return PoolingParams; those of vLLM, which plugins may return, are converted field by field."""
    if isinstance(params, PoolingParams):
        return params
    names = [item.name for item in fields(PoolingParams) if hasattr(params, item.name)]
    if "task" not in names:
        raise PoolingError(f"merge_pooling_params of the plugin must return PoolingParams, got {type(params).__name__}")
    return PoolingParams(**{name: getattr(params, name) for name in names})


def _parsed_kwargs(function: Callable[..., Any], parsed: Any) -> dict[str, Any]:
    """Return the result of `parse_data` as keyword `prompt`, if the function accepts it."""
    parameters = inspect.signature(function).parameters
    is_accepted = "prompt" in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    return {"prompt": parsed} if is_accepted else {}


async def _iterate_async(outputs: Sequence[PoolingRequestOutput]) -> AsyncIterator[tuple[int, PoolingRequestOutput]]:
    for item in enumerate(outputs):
        yield item

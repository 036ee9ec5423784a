"""IOProcessor: the base class of plugins that convert their own data format to prompts, and outputs to a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from cenote.protocol.params import PoolingParams

Data = TypeVar("Data")
Result = TypeVar("Result")

# deprecated method names of older vLLM releases, and the current ones
DEPRECATED_METHODS = {
    "parse_request": "parse_data",
    "validate_or_generate_params": "merge_pooling_params",
    "output_to_response": "post_process",
}

NO_PLUGIN_MESSAGE = (
    "No IOProcessor plugin installed. Install a package that has one and name it with io_processor_plugin "
    "(--io-processor-plugin); docs/plugins.md explains how to write one, and examples/near_duplicates is one."
)


class IOProcessor(ABC, Generic[Data, Result]):
    """Base class of IO processor plugins; one instance serves all requests."""

    def __init__(self, config: Any, renderer: Any = None) -> None:
        self.config = config
        self.vllm_config = config  # the name that plugins written for vLLM use
        self.renderer = renderer

    def parse_data(self, data: object) -> Data:
        """Validate and parse the data of a request; a ValueError or TypeError is returned to the client as a 400."""
        deprecated = getattr(self, "parse_request", None)
        if not callable(deprecated):
            raise NotImplementedError("an IO processor must implement parse_data")
        return cast("Data", deprecated(data))

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """Return the pooling parameters of the prompts. The task `plugin` is the model's default task."""
        deprecated = getattr(self, "validate_or_generate_params", None)
        if callable(deprecated):
            return cast(PoolingParams, deprecated(params))
        return params or PoolingParams(task="plugin")

    @abstractmethod
    def pre_process(self, prompt: Data, request_id: str | None = None, **kwargs: Any) -> Any:
        """Return the prompts to run for the result of `parse_data`: one, or a sequence of them."""

    async def pre_process_async(self, prompt: Data, request_id: str | None = None, **kwargs: Any) -> Any:
        """Like `pre_process`, called by the server; override it to await other services."""
        return self.pre_process(prompt, request_id, **kwargs)

    @abstractmethod
    def post_process(self, model_output: Sequence[Any], request_id: str | None = None, **kwargs: Any) -> Result:
        """Return one result from the `PoolingRequestOutput` of every prompt, in the order of the prompts."""

    async def post_process_async(
        self, model_output: AsyncIterator[tuple[int, Any]], request_id: str | None = None, **kwargs: Any
    ) -> Result:
        """Like `post_process`, called by the server; the outputs come with the index of their prompt, in any order."""
        indexed = sorted([item async for item in model_output], key=lambda item: item[0])
        return self.post_process([output for _, output in indexed], request_id, **kwargs)


def get_method(plugin: object, name: str) -> Callable[..., Any]:
    """Return a method of a plugin, or the default of IOProcessor if the plugin does not inherit from it."""
    method = getattr(plugin, name, None)
    return method if callable(method) else partial(getattr(IOProcessor, name), plugin)


def has_override(plugin: object, name: str) -> bool:
    """Return whether a plugin implements this method instead of inheriting the default."""
    method = getattr(type(plugin), name, None)
    return method is not None and method is not getattr(IOProcessor, name)

"""What an IO processor is: it turns data of its own kind into prompts, and their answers into one of its own kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from cenote.protocol.params import PoolingParams

Data = TypeVar("Data")
Result = TypeVar("Result")

# names that plugins of older releases of the reference use, and today's
DEPRECATED_METHODS = {
    "parse_request": "parse_data",
    "validate_or_generate_params": "merge_pooling_params",
    "output_to_response": "post_process",
}


class IOProcessor(ABC, Generic[Data, Result]):
    """The class to inherit from; one object serves all requests of a model."""

    def __init__(self, config: Any, renderer: Any = None) -> None:
        self.config = config
        self.vllm_config = config  # by this name, plugins written for the reference find it
        self.renderer = renderer

    def parse_data(self, data: object) -> Data:
        """Check what a caller sent; a ValueError or TypeError tells the caller what is wrong with it."""
        older = getattr(self, "parse_request", None)
        if not callable(older):
            raise NotImplementedError("an IO processor has a method parse_data")
        return cast("Data", older(data))

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """How the prompts are pooled. The task `plugin` is the model's own default task."""
        older = getattr(self, "validate_or_generate_params", None)
        if callable(older):
            return cast(PoolingParams, older(params))
        return params or PoolingParams(task="plugin")

    @abstractmethod
    def pre_process(self, prompt: Data, request_id: str | None = None, **kwargs: Any) -> Any:
        """The prompts to run for what `parse_data` returned: one, or a sequence of them."""

    async def pre_process_async(self, prompt: Data, request_id: str | None = None, **kwargs: Any) -> Any:
        """The same where a server asks; a plugin that waits for others meanwhile writes its own."""
        return self.pre_process(prompt, request_id, **kwargs)

    @abstractmethod
    def post_process(self, model_output: Sequence[Any], request_id: str | None = None, **kwargs: Any) -> Result:
        """One result from the `PoolingRequestOutput` of every prompt, in the order of the prompts."""

    async def post_process_async(
        self, model_output: AsyncIterator[tuple[int, Any]], request_id: str | None = None, **kwargs: Any
    ) -> Result:
        """The same where a server asks; the answers come with the number of their prompt."""
        numbered = sorted([each async for each in model_output], key=lambda each: each[0])
        return self.post_process([output for _, output in numbered], request_id, **kwargs)


def get_method(plugin: object, name: str) -> Callable[..., Any]:
    """A plugin's own method; for one that does not inherit from us and has none, our default."""
    own = getattr(plugin, name, None)
    return own if callable(own) else partial(getattr(IOProcessor, name), plugin)


def has_override(plugin: object, name: str) -> bool:
    """Whether a plugin brings this method along instead of leaving it to the default."""
    own = getattr(type(plugin), name, None)
    return own is not None and own is not getattr(IOProcessor, name)

"""The base class of plugins, and plugins that do not inherit from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cenote import PoolingParams
from cenote.plugins import IOProcessor
from cenote.plugins.io_processor import get_method, has_override


class MinimalProcessor(IOProcessor[str, list[Any]]):
    def pre_process(self, prompt: str, request_id: str | None = None, **kwargs: Any) -> str:
        return f"{prompt} {request_id}"

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> list[Any]:
        return [*model_output, request_id, kwargs]


class DuckTypedProcessor:
    """A plugin that does not inherit from IOProcessor."""

    def parse_request(self, data: object) -> object:
        return ("parsed", data)

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(task="embed", dimensions=7)


def test_pre_process_and_post_process_are_abstract() -> None:
    class EmptyProcessor(IOProcessor[Any, Any]):
        pass

    with pytest.raises(TypeError, match="abstract"):
        EmptyProcessor(None)  # type: ignore[abstract]


def test_the_config_is_available_under_both_names() -> None:
    plugin = MinimalProcessor("config", "renderer")

    assert (plugin.config, plugin.vllm_config, plugin.renderer) == ("config", "config", "renderer")


def test_the_default_params_have_the_task_plugin() -> None:
    plugin = MinimalProcessor("config", "renderer")
    params = PoolingParams(use_activation=False)

    assert plugin.merge_pooling_params() == PoolingParams(task="plugin")
    assert plugin.merge_pooling_params(params) is params


def test_async_defaults_call_the_sync_methods_with_sorted_outputs() -> None:
    plugin = MinimalProcessor("config", "renderer")

    async def unordered_outputs() -> AsyncIterator[tuple[int, str]]:
        for item in ((2, "c"), (0, "a"), (1, "b")):
            yield item

    async def call_both() -> tuple[Any, Any]:
        return await plugin.pre_process_async("hello", "id"), await plugin.post_process_async(
            unordered_outputs(), "id", a=1
        )

    assert asyncio.run(call_both()) == ("hello id", ["a", "b", "c", "id", {"a": 1}])


def test_a_class_that_does_not_inherit_gets_the_defaults_for_what_it_lacks() -> None:
    plugin = DuckTypedProcessor()

    assert get_method(plugin, "parse_data")(5) == ("parsed", 5)
    assert get_method(plugin, "merge_pooling_params")() == PoolingParams(task="embed", dimensions=7)
    assert not has_override(plugin, "pre_process_async")


def test_deprecated_methods_are_called_for_subclasses_too() -> None:
    class DeprecatedProcessor(MinimalProcessor, DuckTypedProcessor):
        pass

    assert DeprecatedProcessor("config").parse_data(5) == ("parsed", 5)  # type: ignore[comparison-overlap]
    assert DeprecatedProcessor("config").merge_pooling_params().dimensions == 7
    with pytest.raises(NotImplementedError, match="parse_data"):
        MinimalProcessor("config").parse_data(5)

"""The class that plugins inherit from, and those that do not inherit from it."""

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
    """Has what it needs, and none of our code."""

    def parse_request(self, data: object) -> object:
        return ("parsed", data)

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(task="embed", dimensions=7)


def test_pre_process_and_post_process_are_abstract() -> None:
    class Nothing(IOProcessor[Any, Any]):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing(None)  # type: ignore[abstract]


def test_the_config_is_available_under_both_names() -> None:
    plugin = MinimalProcessor("config", "renderer")

    assert (plugin.config, plugin.vllm_config, plugin.renderer) == ("config", "config", "renderer")


def test_the_default_params_have_the_task_plugin() -> None:
    plugin = MinimalProcessor("config", "renderer")
    given = PoolingParams(use_activation=False)

    assert plugin.merge_pooling_params() == PoolingParams(task="plugin")
    assert plugin.merge_pooling_params(given) is given


def test_async_defaults_call_the_sync_methods_with_sorted_outputs() -> None:
    plugin = MinimalProcessor("config", "renderer")

    async def backwards() -> AsyncIterator[tuple[int, str]]:
        for numbered in ((2, "c"), (0, "a"), (1, "b")):
            yield numbered

    async def both() -> tuple[Any, Any]:
        return await plugin.pre_process_async("hello", "id"), await plugin.post_process_async(backwards(), "id", a=1)

    assert asyncio.run(both()) == ("hello id", ["a", "b", "c", "id", {"a": 1}])


def test_a_class_that_does_not_inherit_gets_the_defaults_for_what_it_lacks() -> None:
    plugin = DuckTypedProcessor()

    assert get_method(plugin, "parse_data")(5) == ("parsed", 5)
    assert get_method(plugin, "merge_pooling_params")() == PoolingParams(task="embed", dimensions=7)
    assert not has_override(plugin, "pre_process_async")


def test_deprecated_methods_are_called_for_subclasses_too() -> None:
    class Older(MinimalProcessor, DuckTypedProcessor):
        pass

    assert Older("config").parse_data(5) == ("parsed", 5)  # type: ignore[comparison-overlap]
    assert Older("config").merge_pooling_params().dimensions == 7
    with pytest.raises(NotImplementedError, match="parse_data"):
        MinimalProcessor("config").parse_data(5)

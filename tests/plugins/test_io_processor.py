"""The class that plugins inherit from, and those that do not inherit from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cenote import PoolingParams
from cenote.plugins import IOProcessor
from cenote.plugins.io_processor import method, overrides


class Smallest(IOProcessor[str, list[Any]]):
    def pre_process(self, prompt: str, request_id: str | None = None, **kwargs: Any) -> str:
        return f"{prompt} {request_id}"

    def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> list[Any]:
        return [*model_output, request_id, kwargs]


class Foreign:
    """Has what it needs, and none of our code."""

    def parse_request(self, data: object) -> object:
        return ("parsed", data)

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(task="embed", dimensions=7)


def test_prompts_and_results_must_be_made_by_the_plugin() -> None:
    class Nothing(IOProcessor[Any, Any]):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing(None)  # type: ignore[abstract]


def test_what_the_plugin_is_told_lies_under_both_names() -> None:
    plugin = Smallest("config", "renderer")

    assert (plugin.config, plugin.vllm_config, plugin.renderer) == ("config", "config", "renderer")


def test_without_a_word_about_parameters_the_task_is_plugin() -> None:
    plugin = Smallest("config", "renderer")
    given = PoolingParams(use_activation=False)

    assert plugin.merge_pooling_params() == PoolingParams(task="plugin")
    assert plugin.merge_pooling_params(given) is given


def test_the_awaited_forms_are_the_blocking_ones_and_answers_are_sorted() -> None:
    plugin = Smallest("config", "renderer")

    async def backwards() -> AsyncIterator[tuple[int, str]]:
        for numbered in ((2, "c"), (0, "a"), (1, "b")):
            yield numbered

    async def both() -> tuple[Any, Any]:
        return await plugin.pre_process_async("hello", "id"), await plugin.post_process_async(backwards(), "id", a=1)

    assert asyncio.run(both()) == ("hello id", ["a", "b", "c", "id", {"a": 1}])


def test_a_class_that_does_not_inherit_gets_the_defaults_for_what_it_lacks() -> None:
    plugin = Foreign()

    assert method(plugin, "parse_data")(5) == ("parsed", 5)
    assert method(plugin, "merge_pooling_params")() == PoolingParams(task="embed", dimensions=7)
    assert not overrides(plugin, "pre_process_async")


def test_older_names_are_followed_by_those_who_inherit_as_well() -> None:
    class Older(Smallest, Foreign):
        pass

    assert Older("config").parse_data(5) == ("parsed", 5)  # type: ignore[comparison-overlap]
    assert Older("config").merge_pooling_params().dimensions == 7
    with pytest.raises(NotImplementedError, match="parse_data"):
        Smallest("config").parse_data(5)

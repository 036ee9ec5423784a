"""The example package, installed by pip and used as in its README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cenote import LLM, BadRequest, PoolingRequestOutput, Unsupported
from cenote.engine.tasks.io_processor import NO_DATA_MESSAGE
from cenote.outputs import PluginRequestOutput
from tests.plugins.conftest import TEXTS


@pytest.fixture(scope="module")
def duplicates_llm(installed_example: Path, default_folder: Path) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed_example))
        with LLM(str(default_folder), dtype="float32", device="cpu", io_processor_plugin="near_duplicates") as llm:
            yield llm


def test_near_duplicates_are_found(duplicates_llm: LLM) -> None:
    (output,) = duplicates_llm.encode(
        {"data": {"texts": TEXTS, "threshold": 0.8}}, pooling_task="plugin", use_tqdm=False
    )

    assert isinstance(output, PoolingRequestOutput)
    assert output.outputs["kept"] == [0, 1, 4]
    assert [(item["index"], item["of"]) for item in output.outputs["duplicates"]] == [(2, 0), (3, 1)]
    assert all(0.8 <= item["similarity"] <= 1 for item in output.outputs["duplicates"])
    assert (output.request_id, output.prompt_token_ids, output.num_cached_tokens) == ("", [], 0)
    assert output.finished is True


def test_a_long_text_is_truncated(duplicates_llm: LLM) -> None:
    long = "the red cat " * 300

    (output,) = duplicates_llm.encode({"data": {"texts": [long, long + "!"]}}, pooling_task="plugin", use_tqdm=False)

    assert output.outputs == {"kept": [0], "duplicates": [{"index": 1, "of": 0, "similarity": 1.0}]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, NO_DATA_MESSAGE),
        ("text", "data must be an object with texts and a threshold, got str"),
        ({}, "texts must be a non-empty list of strings"),
        ({"texts": ["a", 5]}, "texts must be a non-empty list of strings"),
        ({"texts": ["a"] * 2001}, "got 2001 texts; the maximum is 2000"),
        ({"texts": ["a"], "threshold": 2}, "threshold must be a cosine between -1 and 1, got 2"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_data_is_refused_and_the_next_request_succeeds(duplicates_llm: LLM, data: object, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        duplicates_llm.encode({"data": data}, pooling_task="plugin", use_tqdm=False)
    assert caught.value.message == message

    assert len(duplicates_llm.encode({"data": {"texts": ["a"]}}, pooling_task="plugin", use_tqdm=False)) == 1


def test_other_tasks_work_as_without_the_plugin(duplicates_llm: LLM) -> None:
    assert duplicates_llm.embed("a", use_tqdm=False)[0].outputs.hidden_size == 384
    for prompts in ("a text", {"prompt": "a text"}):
        with pytest.raises(BadRequest, match="The 'data' field of the prompt is expected"):
            duplicates_llm.encode(prompts, pooling_task="plugin", use_tqdm=False)
    with pytest.raises(BadRequest, match="The 'data' field is only supported for the 'plugin' pooling task."):
        duplicates_llm.encode({"data": {"texts": ["a"]}}, pooling_task="embed", use_tqdm=False)


def test_the_plugin_task_without_a_plugin_is_refused(llm: LLM) -> None:
    with pytest.raises(Unsupported, match="^No IOProcessor plugin installed.") as caught:
        llm.encode({"data": {"texts": ["a"]}}, pooling_task="plugin", use_tqdm=False)

    paths = re.findall(r"(?:docs|examples)/[\w./]*\w", caught.value.message)
    assert len(paths) == 2 and "examples/near_duplicates" in paths
    assert all((Path(__file__).parents[2] / path).exists() for path in paths)


def test_num_cached_tokens_comes_from_the_plugin_output() -> None:
    class PluginOutput:
        num_cached_tokens = 3

    assert PluginRequestOutput(PluginOutput()).num_cached_tokens == 3
    assert PluginRequestOutput([1]).num_cached_tokens == 0

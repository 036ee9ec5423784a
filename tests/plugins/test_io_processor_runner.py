"""Requests to an IO processor plugin: its steps, tasks and params, errors, and concurrency."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from cenote import LLM, BadRequest, InputTooLong, PoolingError, PoolingParams, PoolingRequestOutput, Unsupported
from cenote.engine.engine import PoolingEngine
from cenote.engine.tasks.io_processor import NO_DATA_MESSAGE, IOProcessorRunner
from cenote.errors import EngineStopped
from cenote.plugins import IOProcessor
from cenote.protocol.params import TokenizationParams


class WordProcessor(IOProcessor[Any, Any]):
    """Makes a prompt of every word of a text; the result contains the arguments of each step."""

    def __init__(self, task: str | None = None) -> None:
        super().__init__(None)
        self.task = task

    def parse_data(self, data: object) -> list[str]:
        if not isinstance(data, str):
            raise TypeError(f"data is a text, got {type(data).__name__}")
        return data.split()

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        merged = super().merge_pooling_params(params)
        merged.task = self.task or merged.task
        return merged

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        self.last_request_id = request_id
        return prompt

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **kwargs: Any
    ) -> Any:
        return {
            "ids": [output.prompt_token_ids for output in model_output],
            "data": [output.outputs.data.tolist() for output in model_output],
            "names": [output.request_id for output in model_output],
            "requests": [self.last_request_id, request_id],
            "prompt": kwargs["prompt"],
        }


@dataclass
class ProcessorHarness:
    """A plugin on the engine that echoes token ids."""

    engine: PoolingEngine
    plugin: Any

    @property
    def processor(self) -> IOProcessorRunner:
        return IOProcessorRunner("words", self.plugin, self.engine.model.description)

    def online(self, data: object, **kwargs: Any) -> Any:
        return asyncio.run(self.processor.process(data, self.engine.pool, request_id="pooling-1", **kwargs))

    def offline(self, data: object, **kwargs: Any) -> Any:
        return self.processor.process_sync(data, self.engine.pool_sync, **kwargs)


@pytest.fixture
def make_harness(engine: PoolingEngine) -> Callable[[Any], ProcessorHarness]:
    return lambda plugin: ProcessorHarness(engine, plugin)


A, B = [101, 1037, 102], [101, 1038, 102]  # "a" and "b" with special tokens


# the steps


def test_a_request_goes_through_every_step_in_the_order_of_its_prompts(make_harness: Any) -> None:
    assert make_harness(WordProcessor()).online("b a b") == {
        "ids": [B, A, B],
        "data": [B, A, B],
        "names": ["pooling-1-0", "pooling-1-1", "pooling-1-2"],
        "requests": ["pooling-1", "pooling-1"],
        "prompt": ["b", "a", "b"],
    }


def test_process_sync_has_no_request_id_and_returns_the_plugins_object(make_harness: Any) -> None:
    class ObjectProcessor(WordProcessor):
        def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            return self, [output.prompt_token_ids for output in model_output], request_id

    plugin = ObjectProcessor()

    assert make_harness(plugin).offline("a b") == (plugin, [A, B], None)


@pytest.mark.parametrize(
    "prompts",
    [
        "a",
        ["a"],
        A,
        [A],
        {"prompt": "a"},
        {"prompt_token_ids": A},
        ({"prompt": "a"},),
    ],
    ids=str,
)
def test_prompts_may_have_every_form_that_programs_use(make_harness: Any, prompts: Any) -> None:
    class FixedProcessor(WordProcessor):
        def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            self.last_request_id = request_id
            return prompts

    assert make_harness(FixedProcessor()).online("x")["ids"] == [A]


def test_plugins_may_change_the_token_ids_of_an_output(make_harness: Any) -> None:
    class TrimmingProcessor(WordProcessor):
        def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            for output in model_output:
                output.prompt_token_ids = output.prompt_token_ids[1:-1]
            return [(output.prompt_token_ids, output.num_prompt_tokens) for output in model_output]

    assert make_harness(TrimmingProcessor()).offline("a") == [([1037], 1)]


def test_async_methods_of_a_plugin_are_used_when_serving(make_harness: Any) -> None:
    class AsyncProcessor(WordProcessor):
        async def pre_process_async(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return [*prompt, "a"]

        async def post_process_async(
            self, model_output: AsyncIterator[tuple[int, Any]], request_id: str | None = None, **kwargs: Any
        ) -> Any:
            return [(index, output.prompt_token_ids) async for index, output in model_output]

    harness = make_harness(AsyncProcessor())

    assert harness.online("b") == [[0, B], [1, A]]
    assert harness.offline("b")["ids"] == [B]


def test_a_plugin_with_deprecated_method_names_works(make_harness: Any) -> None:
    @dataclass
    class Response:
        request_id: str | None
        data: Any

    class DeprecatedProcessor:
        def parse_request(self, request: Any) -> Any:
            return request["text"]

        def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
            return PoolingParams()

        def pre_process(self, prompt: Any, request_id: str | None = None) -> Any:
            return {"prompt": prompt}

        def post_process(self, model_output: Any, request_id: str | None = None) -> Any:
            return model_output[0].outputs.data

        def output_to_response(self, plugin_output: Any) -> Response:
            return Response(None, plugin_output)

    harness = make_harness(DeprecatedProcessor())

    assert harness.online({"text": "a"}) == A
    assert_close(harness.offline({"text": "a"}), torch.tensor(A).float())


def test_pooling_params_of_another_class_are_converted(make_harness: Any) -> None:
    class OtherParams:
        task, use_activation, dimensions, skip_reading_prefix_cache = "token_embed", None, None, True

    class OtherParamsProcessor(WordProcessor):
        def merge_pooling_params(self, params: PoolingParams | None = None) -> Any:
            return OtherParams() if self.task == "other" else 5

    assert make_harness(OtherParamsProcessor("other")).online("a")["ids"] == [A]
    with pytest.raises(PoolingError, match="must return PoolingParams, got int"):
        make_harness(OtherParamsProcessor("invalid")).online("a")


# tasks and parameters


def test_the_plugins_task_is_the_models_default_unless_it_names_another(llm: LLM) -> None:
    description, pool = llm.engine.model.description, llm.engine.pool_sync
    (vector,) = (output.outputs.data for output in llm.embed("a", use_tqdm=False))
    (rows,) = (output.outputs.data for output in llm.encode("a", pooling_task="token_embed", use_tqdm=False))

    def run(task: str | None) -> torch.Tensor:
        result = IOProcessorRunner("words", WordProcessor(task), description).process_sync("a", pool)
        return torch.tensor(result["data"][0])

    assert_close(run(None), vector)
    assert_close(run("plugin"), vector)
    assert_close(run("token_embed"), rows)
    assert_close(run("embed&token_embed"), torch.cat([vector, rows.flatten()]))
    assert_close(run("token_embed&embed"), torch.cat([rows.flatten(), vector]))


def test_every_prompt_may_have_a_task_of_its_own(llm: LLM) -> None:
    processor = IOProcessorRunner("words", WordProcessor(), llm.engine.model.description)
    params = [PoolingParams(task="token_embed"), PoolingParams(task="embed&token_embed"), PoolingParams()]

    result = processor.process_sync("a b a", llm.engine.pool_sync, params=params)

    rows, both, vector = map(torch.tensor, result["data"])
    assert (rows.shape, both.shape, vector.shape) == ((3, 384), (4 * 384,), (384,))
    (alone,) = (output.outputs.data for output in llm.embed("b", use_tqdm=False))
    assert_close(both[:384], alone)
    assert params[2] == PoolingParams()  # the caller's params are not changed


@pytest.mark.parametrize("task", ["classify", "embed&token_classify", "score", "nonsense"])
def test_a_task_the_model_does_not_have_is_refused_with_those_it_has(make_harness: Any, task: str) -> None:
    with pytest.raises(Unsupported, match=rf"plugin 'words' requested the task '{task}'.*\('embed', 'token_embed'\)"):
        make_harness(WordProcessor(task)).online("a")


def test_params_are_one_for_all_prompts_or_one_per_prompt(make_harness: Any) -> None:
    harness = make_harness(WordProcessor())

    assert len(harness.offline("a b", params=PoolingParams(use_activation=False))["ids"]) == 2
    with pytest.raises(BadRequest, match=r"The lengths of prompts \(2\) and params \(1\) must be the same."):
        harness.offline("a b", params=[PoolingParams()])
    with pytest.raises(BadRequest, match="pooling_params must be one PoolingParams for all prompts"):
        harness.offline("a b", params="embed")


def test_long_prompts_are_refused_unless_truncation_is_requested(make_harness: Any) -> None:
    class LongPromptProcessor(WordProcessor):
        def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            self.last_request_id = request_id
            return "a " * 300

    class TruncatingProcessor(LongPromptProcessor):
        def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
            return PoolingParams(truncate_prompt_tokens=5)

    with pytest.raises(InputTooLong):
        make_harness(LongPromptProcessor()).online("x")
    assert (
        len(
            make_harness(LongPromptProcessor()).online("x", tokenization=TokenizationParams(truncate_prompt_tokens=7))[
                "ids"
            ][0]
        )
        == 7
    )
    assert len(make_harness(TruncatingProcessor()).online("x")["ids"][0]) == 5


# errors


@pytest.mark.parametrize("flow", ["online", "offline"])
def test_missing_data_is_refused_with_the_message_of_vllm(make_harness: Any, flow: str) -> None:
    with pytest.raises(BadRequest) as caught:
        getattr(make_harness(WordProcessor()), flow)(None)

    assert caught.value.message == NO_DATA_MESSAGE


@pytest.mark.parametrize("flow", ["online", "offline"])
def test_data_refused_by_the_plugin_is_a_bad_request(make_harness: Any, flow: str) -> None:
    with pytest.raises(BadRequest) as caught:
        getattr(make_harness(WordProcessor()), flow)(5)

    assert (caught.value.message, caught.value.param) == ("data is a text, got int", "data")


def make_failing(step: str, error: Exception) -> WordProcessor:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return type("Failing", (WordProcessor,), {step: fail})()


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("parse_data", KeyError("secret text")),
        ("pre_process", RuntimeError("secret text")),
        ("pre_process_async", RuntimeError("secret text")),
        ("merge_pooling_params", IndexError("secret text")),
        ("post_process", ValueError("secret text")),
        ("post_process_async", ValueError("secret text")),
        ("output_to_response", AttributeError("secret text")),
    ],
)
def test_a_plugin_failure_is_a_500_and_the_log_has_the_traceback_without_the_data(
    make_harness: Any, caplog: pytest.LogCaptureFixture, step: str, error: Exception
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(PoolingError) as caught:
        make_harness(make_failing(step, error)).online("a")

    kind = type(error).__name__
    assert caught.value.message == f"the IO processor plugin 'words' failed in {step} ({kind})"
    assert caught.value.status == 500
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None
    assert "in fail\n    raise error" in caplog.text and "pooling-1" in caplog.text
    assert "secret" not in caplog.text


def test_offline_the_plugins_own_error_is_the_cause(make_harness: Any) -> None:
    with pytest.raises(PoolingError) as caught:
        make_harness(make_failing("post_process", KeyError("what"))).offline("a")

    assert isinstance(caught.value.__cause__, KeyError)


def test_pooling_errors_are_not_wrapped(make_harness: Any) -> None:
    with pytest.raises(Unsupported, match="no such language"):
        make_harness(make_failing("parse_data", Unsupported("no such language"))).online("a")
    with pytest.raises(BadRequest, match="You must pass at least one prompt"):
        make_harness(WordProcessor()).online("")


def test_a_result_without_a_json_form_is_a_plugin_failure(make_harness: Any) -> None:
    class InvalidResultProcessor(WordProcessor):
        def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            return {"engine": threading.current_thread()}

    message = "'words' returned a value that cannot be sent as JSON: Thread, which has no JSON form"
    with pytest.raises(PoolingError, match=message):
        make_harness(InvalidResultProcessor()).online("a")


def test_a_stopped_engine_fails_plugin_requests_too(make_harness: Any) -> None:
    harness = make_harness(WordProcessor())
    harness.engine.stop()

    with pytest.raises(EngineStopped):
        harness.online("a")


# concurrency


class SlowProcessor(WordProcessor):
    """Records how many of its calls run at the same time."""

    running = max_running = 0

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        time.sleep(0.2)
        self.running -= 1
        return super().pre_process(prompt, request_id, **kwargs)


def test_blocking_plugin_code_does_not_block_the_event_loop_and_runs_one_call_at_a_time(make_harness: Any) -> None:
    harness = make_harness(SlowProcessor())

    async def run_many() -> tuple[list[Any], float]:
        processor, longest = harness.processor, 0.0
        requests = [
            asyncio.create_task(processor.process("a", harness.engine.pool, request_id=f"pooling-{number}"))
            for number in range(3)
        ]
        while not all(request.done() for request in requests):
            started_at = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - started_at)
        return [await request for request in requests], longest

    results, longest = asyncio.run(run_many())

    assert [result["ids"] for result in results] == [[A]] * 3
    assert harness.plugin.max_running == 1
    assert longest < 0.18


def test_state_that_a_plugin_keeps_for_its_params_belongs_to_one_request(make_harness: Any) -> None:
    class StatefulProcessor(WordProcessor):
        """Stores state between two steps, which is safe on an event loop as no await is in between."""

        stored_id: str | None = None

        def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            self.stored_id = request_id
            time.sleep(0.01)
            return super().pre_process(prompt, request_id, **kwargs)

        def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
            stored_id, self.stored_id = self.stored_id, None
            return PoolingParams(extra_kwargs={"request_id": stored_id})

    harness = make_harness(StatefulProcessor())
    pairs: list[tuple[str, Any]] = []

    async def run_many() -> None:
        processor = harness.processor

        async def run_one(name: str) -> None:
            async def pool(request: Any) -> Any:
                pairs.append((name, request.params[0].extra_kwargs["request_id"]))
                return await harness.engine.pool(request)

            await processor.process("a", pool, request_id=name)

        await asyncio.gather(*(run_one(str(number)) for number in range(8)))

    asyncio.run(run_many())

    assert sorted(pairs) == [(str(number), str(number)) for number in range(8)]


def test_a_cancelled_request_does_not_run_its_queued_plugin_code(make_harness: Any) -> None:
    harness = make_harness(SlowProcessor())

    async def run_and_cancel() -> list[Any]:
        processor = harness.processor
        first, second = (
            asyncio.create_task(processor.process("a", harness.engine.pool, request_id=name)) for name in ("1", "2")
        )
        await asyncio.sleep(0.01)
        second.cancel()
        return await asyncio.gather(first, second, return_exceptions=True)

    first, second = asyncio.run(run_and_cancel())

    assert first["ids"] == [A]
    assert isinstance(second, asyncio.CancelledError)
    assert harness.plugin.last_request_id == "1"

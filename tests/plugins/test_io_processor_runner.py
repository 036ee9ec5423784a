"""One request to a plugin: its steps, what becomes of its errors, and who waits for its code."""

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
    """A prompt for every word of a text; the result tells what each step was given."""

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
        self.seen = request_id
        return prompt

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **kwargs: Any
    ) -> Any:
        return {
            "ids": [output.prompt_token_ids for output in model_output],
            "data": [output.outputs.data.tolist() for output in model_output],
            "names": [output.request_id for output in model_output],
            "requests": [self.seen, request_id],
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

    def online(self, data: object, **more: Any) -> Any:
        return asyncio.run(self.processor.process(data, self.engine.pool, request_id="pooling-1", **more))

    def offline(self, data: object, **more: Any) -> Any:
        return self.processor.process_sync(data, self.engine.pool_sync, **more)


@pytest.fixture
def make_harness(engine: PoolingEngine) -> Callable[[Any], ProcessorHarness]:
    return lambda plugin: ProcessorHarness(engine, plugin)


A, B = [101, 1037, 102], [101, 1038, 102]  # "a" and "b" between their special tokens


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
    class Own(WordProcessor):
        def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            return self, [output.prompt_token_ids for output in model_output], request_id

    plugin = Own()

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
    class Given(WordProcessor):
        def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            self.seen = request_id
            return prompts

    assert make_harness(Given()).online("x")["ids"] == [A]


def test_plugins_may_cut_the_token_ids_of_an_answer(make_harness: Any) -> None:
    class Cutting(WordProcessor):
        def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            for output in model_output:
                output.prompt_token_ids = output.prompt_token_ids[1:-1]
            return [(output.prompt_token_ids, output.num_prompt_tokens) for output in model_output]

    assert make_harness(Cutting()).offline("a") == [([1037], 1)]


def test_async_methods_of_a_plugin_are_used_when_serving(make_harness: Any) -> None:
    class Awaited(WordProcessor):
        async def pre_process_async(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return [*prompt, "a"]

        async def post_process_async(
            self, model_output: AsyncIterator[tuple[int, Any]], request_id: str | None = None, **kwargs: Any
        ) -> Any:
            return [(place, output.prompt_token_ids) async for place, output in model_output]

    asked = make_harness(Awaited())

    assert asked.online("b") == [[0, B], [1, A]]
    assert asked.offline("b")["ids"] == [B]


def test_a_plugin_with_deprecated_method_names_works(make_harness: Any) -> None:
    @dataclass
    class Response:
        request_id: str | None
        data: Any

    class Older:
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

    asked = make_harness(Older())

    assert asked.online({"text": "a"}) == A
    assert_close(asked.offline({"text": "a"}), torch.tensor(A).float())


def test_pooling_params_of_another_class_are_converted(make_harness: Any) -> None:
    class Theirs:
        task, use_activation, dimensions, skip_reading_prefix_cache = "token_embed", None, None, True

    class Foreign(WordProcessor):
        def merge_pooling_params(self, params: PoolingParams | None = None) -> Any:
            return Theirs() if self.task == "theirs" else 5

    assert make_harness(Foreign("theirs")).online("a")["ids"] == [A]
    with pytest.raises(PoolingError, match="merge_pooling_params of the plugin returned int, not PoolingParams"):
        make_harness(Foreign("nobody's")).online("a")


# tasks and parameters


def test_the_plugins_task_is_the_models_default_unless_it_names_another(llm: LLM) -> None:
    description, pool = llm.engine.model.description, llm.engine.pool_sync
    (vector,) = (output.outputs.data for output in llm.embed("a", use_tqdm=False))
    (rows,) = (output.outputs.data for output in llm.encode("a", pooling_task="token_embed", use_tqdm=False))

    def answer(task: str | None) -> torch.Tensor:
        result = IOProcessorRunner("words", WordProcessor(task), description).process_sync("a", pool)
        return torch.tensor(result["data"][0])

    assert_close(answer(None), vector)
    assert_close(answer("plugin"), vector)
    assert_close(answer("token_embed"), rows)
    assert_close(answer("embed&token_embed"), torch.cat([vector, rows.flatten()]))
    assert_close(answer("token_embed&embed"), torch.cat([rows.flatten(), vector]))


def test_every_prompt_may_have_a_task_of_its_own(llm: LLM) -> None:
    processor = IOProcessorRunner("words", WordProcessor(), llm.engine.model.description)
    params = [PoolingParams(task="token_embed"), PoolingParams(task="embed&token_embed"), PoolingParams()]

    result = processor.process_sync("a b a", llm.engine.pool_sync, params=params)

    rows, both, vector = map(torch.tensor, result["data"])
    assert (rows.shape, both.shape, vector.shape) == ((3, 384), (4 * 384,), (384,))
    (alone,) = (output.outputs.data for output in llm.embed("b", use_tqdm=False))
    assert_close(both[:384], alone)
    assert params[2] == PoolingParams()  # the caller's own are left alone


@pytest.mark.parametrize("task", ["classify", "embed&token_classify", "score", "nonsense"])
def test_a_task_the_model_does_not_have_is_refused_with_those_it_has(make_harness: Any, task: str) -> None:
    with pytest.raises(Unsupported, match=rf"plugin 'words' asks for the task '{task}'.*\('embed', 'token_embed'\)"):
        make_harness(WordProcessor(task)).online("a")


def test_parameters_are_one_for_all_or_one_each(make_harness: Any) -> None:
    asked = make_harness(WordProcessor())

    assert len(asked.offline("a b", params=PoolingParams(use_activation=False))["ids"]) == 2
    with pytest.raises(BadRequest, match=r"The lengths of prompts \(2\) and params \(1\) must be the same."):
        asked.offline("a b", params=[PoolingParams()])
    with pytest.raises(BadRequest, match="pooling_params is one PoolingParams for all prompts"):
        asked.offline("a b", params="embed")


def test_long_prompts_are_refused_unless_truncation_is_requested(make_harness: Any) -> None:
    class Short(WordProcessor):
        def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            self.seen = request_id
            return "a " * 300

    class Cutting(Short):
        def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
            return PoolingParams(truncate_prompt_tokens=5)

    with pytest.raises(InputTooLong):
        make_harness(Short()).online("x")
    assert (
        len(make_harness(Short()).online("x", tokenization=TokenizationParams(truncate_prompt_tokens=7))["ids"][0]) == 7
    )
    assert len(make_harness(Cutting()).online("x")["ids"][0]) == 5


# what goes wrong


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
    class Odd(WordProcessor):
        def post_process(self, model_output: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            return {"engine": threading.current_thread()}

    with pytest.raises(PoolingError, match="'words' returned what cannot be sent: Thread, which has no JSON form"):
        make_harness(Odd()).online("a")


def test_a_stopped_engine_fails_plugin_requests_too(make_harness: Any) -> None:
    asked = make_harness(WordProcessor())
    asked.engine.stop()

    with pytest.raises(EngineStopped):
        asked.online("a")


# who waits


class SlowProcessor(WordProcessor):
    """Notes how many of its calls run at once."""

    running = max_running = 0

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        time.sleep(0.2)
        self.running -= 1
        return super().pre_process(prompt, request_id, **kwargs)


def test_blocking_plugin_code_does_not_block_the_event_loop_and_runs_one_call_at_a_time(make_harness: Any) -> None:
    asked = make_harness(SlowProcessor())

    async def many() -> tuple[list[Any], float]:
        processor, longest = asked.processor, 0.0
        requests = [
            asyncio.create_task(processor.process("a", asked.engine.pool, request_id=f"pooling-{number}"))
            for number in range(3)
        ]
        while not all(request.done() for request in requests):
            began = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - began)
        return [await request for request in requests], longest

    results, longest = asyncio.run(many())

    assert [result["ids"] for result in results] == [[A]] * 3
    assert asked.plugin.most == 1
    assert longest < 0.18


def test_state_that_a_plugin_keeps_for_its_params_belongs_to_one_request(make_harness: Any) -> None:
    class Noting(WordProcessor):
        """As plugins written for an event loop do: one slot, filled and emptied with no await between."""

        noted: str | None = None

        def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
            self.noted = request_id
            time.sleep(0.01)
            return super().pre_process(prompt, request_id, **kwargs)

        def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
            noted, self.noted = self.noted, None
            return PoolingParams(extra_kwargs={"noted": noted})

    asked = make_harness(Noting())
    noted: list[tuple[str, Any]] = []

    async def many() -> None:
        processor = asked.processor

        async def one(name: str) -> None:
            async def pool(request: Any) -> Any:
                noted.append((name, request.params[0].extra_kwargs["noted"]))
                return await asked.engine.pool(request)

            await processor.process("a", pool, request_id=name)

        await asyncio.gather(*(one(str(number)) for number in range(8)))

    asyncio.run(many())

    assert sorted(noted) == [(str(number), str(number)) for number in range(8)]


def test_a_cancelled_request_does_not_run_its_queued_plugin_code(make_harness: Any) -> None:
    asked = make_harness(SlowProcessor())

    async def leave() -> list[Any]:
        processor = asked.processor
        first, second = (
            asyncio.create_task(processor.process("a", asked.engine.pool, request_id=name)) for name in ("1", "2")
        )
        await asyncio.sleep(0.01)
        second.cancel()
        return await asyncio.gather(first, second, return_exceptions=True)

    first, second = asyncio.run(leave())

    assert first["ids"] == [A]
    assert isinstance(second, asyncio.CancelledError)
    assert asked.plugin.seen == "1"

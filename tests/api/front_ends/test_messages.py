"""Messages between front-ends and the engine's process hold what was put into them."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from cenote import LLM, errors
from cenote.api.encoding import Float32Array
from cenote.api.front_ends.channel import BUFFER_BYTES, Channel
from cenote.api.front_ends.codec_requests import (
    decode_input,
    decode_pool,
    decode_score,
    decode_token_ids,
    encode_input,
    encode_pool,
    encode_score,
    encode_token_ids,
    to_json,
)
from cenote.api.front_ends.codec_results import (
    decode_error,
    decode_model_info,
    decode_pool_results,
    decode_score_results,
    encode_error,
    encode_pool_results,
    encode_score_results,
)
from cenote.api.front_ends.messages import (
    DetokenizeResponse,
    EngineMessage,
    EngineReady,
    ErrorResponse,
    FrontEndMessage,
    Init,
    Message,
    MetricsResponse,
    TokenizeCall,
)
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, InputTooLong, NumericalError, PoolingError, Unsupported
from cenote.protocol.input_types import ContentParts, Conversation, PromptEmbeds, TextPair
from cenote.protocol.params import PoolingParams, TokenizationParams
from cenote.protocol.requests import PoolRequest, ScoreRequest, Timing
from cenote.protocol.results import PoolResult, PoolResultBatch, ScoreResult
from cenote.utils.metrics import MetricFamily, MetricSeries

UNUSUAL_TEXTS = ["", "a\x00b", "naïve ☃ 🧑‍🚀", "\u202eright to left", "x" * 70_000, "\U0010ffff"]
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PoolingError)]


def roundtrip(message: Message, message_type: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=message_type)


def ignore(*anything: Any) -> None:
    pass


async def open_channel(
    end: socket.socket, receive: Callable[..., None] = ignore, ended: Callable[[], None] = ignore
) -> Channel[Any]:
    channel: Channel[Any] = Channel(EngineMessage, receive, ended)
    await channel.connect(end)
    return channel


def send_and_receive(messages: Sequence[tuple[Message, Sequence[Float32Array]]]) -> list[tuple[Any, bytes]]:
    """What comes out at the other end of a socket pair."""

    async def send() -> list[tuple[Any, bytes]]:
        received: list[tuple[Any, bytes]] = []
        all_here, left = asyncio.Event(), asyncio.Event()

        def receive(message: Any, numbers: bytes | memoryview) -> None:
            received.append((message, bytes(numbers)))
            if len(received) == len(messages):
                all_here.set()

        here, there = socket.socketpair()
        sender = await open_channel(here)
        await open_channel(there, receive, left.set)
        for message, numbers in messages:
            sender.send(message, numbers)
        await asyncio.wait_for(all_here.wait(), 20)
        sender.close()
        await asyncio.wait_for(left.wait(), 20)
        return received

    return asyncio.run(send())


def vector(*shape: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_result(data: Any, num_tokens: int = 3, num_input_tokens: int = 3, is_exact: bool = True) -> PoolResult:
    return PoolResult(data, np.arange(num_tokens, dtype=np.int32), num_tokens, num_input_tokens, is_exact)


@pytest.mark.parametrize(
    "item",
    [
        *UNUSUAL_TEXTS,
        [0, 1, 2**31, -5],
        [],
        TextPair("q ☃", "d", "{{ query }}", {"k": [1, None, 1.5]}),
        Conversation(
            [{"role": "user", "content": [{"type": "text", "text": "☃"}]}], None, {"n": 10**30}, True, True, ("a",)
        ),
        ContentParts([{"type": "text", "text": "☃"}, {"image": "data:image/png;base64,AA=="}], "inputs[3].content"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_every_kind_of_input_comes_back_as_it_was(item: Any) -> None:
    message = encode_pool(7, PoolRequest(task="embed", inputs=[item, "next"]))

    request = decode_pool(roundtrip(message, FrontEndMessage), Timing())

    assert request.inputs == [item, "next"]


@pytest.mark.parametrize("ids", [[2**63, 1], [-(2**63), 1], [10**40], [1, -(10**40)]])
def test_token_ids_of_any_size_reach_the_engine_which_refuses_them(ids: list[int]) -> None:
    assert decode_input(roundtrip(TokenizeCall(1, encode_input(ids), True, False), FrontEndMessage).item) == ids
    assert decode_token_ids(encode_token_ids(ids)) == ids


def test_a_pool_request_is_encoded_completely() -> None:
    request = PoolRequest(
        task="token_embed",
        inputs=["a"],
        params=[PoolingParams(use_activation=False, dimensions=32, extra_kwargs={"a": [1, "b"]})],
        tokenization=TokenizationParams(truncate_prompt_tokens=-1, truncation_side="left", add_special_tokens=False),
        prompt="p: ",
        prompt_name="query",
        role="query",
        mm_processor_kwargs={"max_pixels": 2**70},
        priority=-(2**63),
        tenant="a",
        return_exceptions=True,
    )
    timing = request.timing

    assert decode_pool(roundtrip(encode_pool(1, request), FrontEndMessage), timing) == request


def test_a_score_request_is_encoded_completely() -> None:
    request = ScoreRequest(
        queries=UNUSUAL_TEXTS,
        documents=[ContentParts([{"type": "image_url", "image_url": {"url": "☃"}}], "documents[0]")]
        * len(UNUSUAL_TEXTS),
        score_type="bi-encoder",
        params=PoolingParams(use_activation=True),
        tokenization=TokenizationParams(truncate_prompt_tokens=5),
        max_tokens_per_query=3,
        max_tokens_per_doc=4,
        template="{{ query }}",
        template_kwargs={"instruction": "☃", "n": 2**70},
        mm_processor_kwargs={"max_pixels": [1, None]},
        priority=3,
        tenant="b",
        return_exceptions=True,
    )

    assert decode_score(roundtrip(encode_score(1, request), FrontEndMessage), request.timing) == request


def test_embeddings_as_input_are_refused_with_what_would_work() -> None:
    with pytest.raises(Unsupported, match="--api-server-count 1"):
        encode_input(PromptEmbeds(vector(2, 3)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shapes",
    [
        [(384,)] * 32,
        [(3, 8), (5, 8), (1, 8)],
        [(4, 8)] * 3,
        [(20_000,)] * 4,
        [(0, 8), (2, 8)],
        [(0, 8)] * 2,
        [()],
        [(1,)],
        [],
    ],
    ids=str,
)
def test_results_of_any_shape_are_decoded_bit_for_bit(shapes: list[tuple[int, ...]]) -> None:
    answers: list[PoolResult | PoolingError] = [
        make_result(
            vector(*shape, seed=place), num_tokens=place + 1, num_input_tokens=2 * place + 1, is_exact=place % 2 == 0
        )
        for place, shape in enumerate(shapes)
    ]
    message, numbers = encode_pool_results(5, Timing(0.25, 0.5, 1.5), answers)

    ((received, raw),) = send_and_receive([(message, numbers)])

    assert (received.number, received.timing) == (5, (0.25, 0.5, 1.5))
    for before, after in zip(answers, decode_pool_results(received, raw), strict=True):
        assert isinstance(before, PoolResult) and isinstance(after, PoolResult)
        assert np.array_equal(np.asarray(before.data), np.asarray(after.data))
        assert before.data.shape == after.data.shape
        assert (before.num_tokens, before.num_input_tokens) == (after.num_tokens, after.num_input_tokens)
        assert before.is_input_count_exact == after.is_input_count_exact
        assert len(after.token_ids) == 0


def test_errors_keep_their_index_among_the_results() -> None:
    first, last = NumericalError("not finite"), InputTooLong("too long", param="input", value=513)
    first.index, last.index = 0, 3
    message, numbers = encode_pool_results(
        1, Timing(), [first, make_result(vector(8)), make_result(vector(8, seed=1)), last]
    )

    ((received, raw),) = send_and_receive([(message, numbers)])
    zero, one, two, three = decode_pool_results(received, raw)

    assert (type(zero), str(zero)) == (NumericalError, "not finite")
    assert isinstance(one, PoolResult) and isinstance(two, PoolResult)
    assert np.array_equal(np.asarray(two.data), vector(8, seed=1))
    assert (type(three), str(three)) == (InputTooLong, str(last))
    assert isinstance(three, InputTooLong) and three.index == 3


def test_scores_keep_every_bit_and_their_order() -> None:
    answers: list[ScoreResult | PoolingError] = [
        ScoreResult(1 / 3, np.zeros(2, dtype=np.int32), 2, 9, False),
        NumericalError("no"),
        ScoreResult(5e-324, np.zeros(2, dtype=np.int32), 2, 2),
    ]

    one, two, three = decode_score_results(roundtrip(encode_score_results(1, Timing(), answers), EngineMessage))

    assert isinstance(one, ScoreResult) and isinstance(three, ScoreResult)
    assert (one.score, one.num_tokens, one.num_input_tokens, one.is_input_count_exact) == (1 / 3, 2, 9, False)
    assert isinstance(two, NumericalError)
    assert three.score == 5e-324


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_of_every_class_comes_back_as_what_it_was(kind: type[PoolingError]) -> None:
    error = kind("what was wrong ☃", param="input", value=17)
    error.index = 4

    back = decode_error(roundtrip(ErrorResponse(1, (0, 0, 0), encode_error(error)), EngineMessage).fault)

    assert type(back) is kind
    assert isinstance(back, PoolingError)
    assert (str(back), back.status, back.param, back.index) == (str(error), error.status, "input", 4)


def test_an_unknown_error_class_is_decoded_as_its_known_base_class() -> None:
    class Odd(BadRequest):
        pass

    assert type(decode_error(encode_error(Odd("odd")))) is BadRequest


def test_an_unexpected_exception_is_decoded_as_a_runtime_error() -> None:
    back = decode_error(encode_error(KeyError("lost")))

    assert not isinstance(back, PoolingError)
    assert "KeyError: 'lost'" in str(back)


def test_a_message_that_quotes_half_a_surrogate_pair_can_be_sent() -> None:
    fault = roundtrip(
        ErrorResponse(1, (0, 0, 0), encode_error(BadRequest("bad \ud800", value="\udfff"))), EngineMessage
    ).fault

    assert (fault.message, fault.value) == ("bad \\ud800", "\\udfff")


def test_settings_and_metrics_are_encoded_completely() -> None:
    settings = ServerConfig(api_key=("a", "b"), served_model_name=("m",), uds="/tmp/☃", log_format="json")
    families = [
        MetricFamily("h", "help", "histogram", ("route",), (0.5, 1.0), [MetricSeries(("/x",), 2.5, [1, 0, 3])]),
        MetricFamily("g", "help", "gauge", series=[MetricSeries((), 1e300)]),
    ]

    welcome = Init(settings, 2, 12345.678, 1_700_000_000)
    assert roundtrip(welcome, EngineMessage) == welcome
    assert roundtrip(MetricsResponse(1, families), EngineMessage) == MetricsResponse(1, families)


@pytest.mark.parametrize("size", [1, 1000, BUFFER_BYTES - 40, BUFFER_BYTES, BUFFER_BYTES + 1, 20 * BUFFER_BYTES])
def test_frames_of_any_size_are_received_intact(size: int) -> None:
    small, large = vector(3), vector(size)
    frames: list[tuple[Message, Sequence[Float32Array]]] = [
        (DetokenizeResponse(1, "first"), [small]),
        (DetokenizeResponse(2, "x" * size), [large, small]),
        (DetokenizeResponse(3, ""), ()),
        (DetokenizeResponse(4, "x" * size), ()),
        (DetokenizeResponse(5, "last"), [large]),
    ]

    received = send_and_receive(frames)

    assert [(message.number, message.text) for message, _ in received] == [
        (message.number, message.text)  # type: ignore[attr-defined]
        for message, _ in frames
    ]
    assert [raw for _, raw in received] == [b"".join(each.tobytes() for each in numbers) for _, numbers in frames]


def test_large_results_are_aligned_views_of_the_received_buffer() -> None:
    seen: list[PoolResult | PoolingError] = []

    async def send() -> None:
        done = asyncio.Event()

        def receive(message: Any, numbers: bytes | memoryview) -> None:
            seen.extend(decode_pool_results(message, numbers))
            done.set()

        here, there = socket.socketpair()
        sender = await open_channel(here)
        await open_channel(there, receive)
        sender.send(*encode_pool_results(3, Timing(), [make_result(vector(1000, 384))]))
        await asyncio.wait_for(done.wait(), 20)
        sender.close()

    asyncio.run(send())
    (only,) = seen
    assert isinstance(only, PoolResult)
    data = np.asarray(only.data)
    assert data.base is not None and data.flags.aligned
    assert np.array_equal(data, vector(1000, 384))


def test_a_writer_waits_for_a_slow_reader() -> None:
    async def send() -> None:
        here, there = socket.socketpair()
        sender = await open_channel(here)
        sender.send(DetokenizeResponse(1, "x" * 10_000_000))

        waiting = asyncio.create_task(sender.wait_writable())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await open_channel(there)
        await asyncio.wait_for(waiting, 20)
        sender.close()
        await asyncio.sleep(0.01)

    asyncio.run(send())


def test_model_info_is_encoded_with_integers_of_any_size(llm: LLM) -> None:
    about = replace(llm.engine.model_info, tokenizer_info={"model_max_length": 1000000000000000019884624838656})

    assert decode_model_info(roundtrip(EngineReady(to_json(about)), EngineMessage)) == about


def test_rows_of_one_array_are_sent_and_decoded_as_one_array() -> None:
    rows = vector(3, 5)
    answers = PoolResultBatch([make_result(row, num_tokens=place) for place, row in enumerate(rows)], rows)

    message, numbers = encode_pool_results(1, Timing(), answers)
    ((received, raw),) = send_and_receive([(message, numbers)])
    back = decode_pool_results(received, raw)

    assert len(numbers) == 1 and np.shares_memory(numbers[0], rows)
    assert isinstance(back, PoolResultBatch) and np.array_equal(np.asarray(back.rows), rows)
    assert [each.num_tokens for each in back if isinstance(each, PoolResult)] == [0, 1, 2]


def test_messages_sent_in_one_event_loop_iteration_arrive_in_order_even_if_the_channel_closes() -> None:
    async def talk() -> list[str]:
        heard: list[str] = []
        left = asyncio.Event()
        here, there = socket.socketpair()
        sender = await open_channel(here)
        await open_channel(there, lambda message, numbers: heard.append(message.text), left.set)
        for number in range(5):
            sender.send(DetokenizeResponse(number, f"{number}" * 50_000))
        sender.close()
        await asyncio.wait_for(left.wait(), 20)
        return heard

    assert asyncio.run(talk()) == [f"{number}" * 50_000 for number in range(5)]

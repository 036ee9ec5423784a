"""Messages between front-ends and the engine process are encoded and decoded without loss."""

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
from cenote.api.wire.channel import BUFFER_BYTES, Channel
from cenote.api.wire.codec_requests import (
    decode_input,
    decode_pool,
    decode_token_ids,
    encode_input,
    encode_pool,
    encode_token_ids,
    to_json,
)
from cenote.api.wire.codec_results import (
    decode_error,
    decode_model_info,
    decode_pool_results,
    encode_error,
    encode_pool_results,
)
from cenote.api.wire.control_messages import Init, SupervisorToFrontEnd
from cenote.api.wire.link_messages import EngineMessage, FrontEndMessage
from cenote.api.wire.messages import (
    DetokenizeResponse,
    EngineReady,
    ErrorResponse,
    Message,
    MetricsResponse,
    TokenizeCall,
)
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, InputTooLong, NumericalError, PoolingError
from cenote.protocol.input_types import ContentParts, Conversation, MultimodalPair, TextPair
from cenote.protocol.params import PoolingParams, TokenizationParams
from cenote.protocol.requests import CallRef, PoolRequest, Timing
from cenote.protocol.results import PoolResult, PoolResultBatch
from cenote.protocol.scheduling import SchedulingParams
from cenote.utils.metrics import MetricFamily, MetricSeries

UNUSUAL_TEXTS = ["", "a\x00b", "naïve ☃ 🧑‍🚀", "\u202eright to left", "x" * 70_000, "\U0010ffff"]
ERROR_CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, PoolingError)]


def roundtrip(message: Message, message_type: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=message_type)


def ignore(*anything: Any) -> None:
    pass


async def open_channel(
    sock: socket.socket, on_message: Callable[..., None] = ignore, on_closed: Callable[[], None] = ignore
) -> Channel[Any]:
    channel: Channel[Any] = Channel(EngineMessage, on_message, on_closed)
    await channel.connect(sock)
    return channel


def send_and_receive(messages: Sequence[tuple[Message, Sequence[Float32Array]]]) -> list[tuple[Any, bytes]]:
    """Return what arrives at the other end of a socket pair."""

    async def send() -> list[tuple[Any, bytes]]:
        received: list[tuple[Any, bytes]] = []
        all_received, closed = asyncio.Event(), asyncio.Event()

        def receive(message: Any, array_bytes: bytes | memoryview) -> None:
            received.append((message, bytes(array_bytes)))
            if len(received) == len(messages):
                all_received.set()

        sock_a, sock_b = socket.socketpair()
        sender = await open_channel(sock_a)
        await open_channel(sock_b, receive, closed.set)
        for message, arrays in messages:
            sender.send(message, arrays)
        await asyncio.wait_for(all_received.wait(), 20)
        sender.close()
        await asyncio.wait_for(closed.wait(), 20)
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
        MultimodalPair("q", ContentParts([{"type": "image", "image": "☃"}], "documents[0]"), None, {"n": 2**70}),
        Conversation(
            [{"role": "user", "content": [{"type": "text", "text": "☃"}]}], None, {"n": 10**30}, True, True, ("a",)
        ),
        ContentParts([{"type": "text", "text": "☃"}, {"image": "data:image/png;base64,AA=="}], "inputs[3].content"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_an_input_of_every_type_is_decoded_unchanged(item: Any) -> None:
    message = encode_pool(7, PoolRequest(task="embed", inputs=[item, "next"]))

    request = decode_pool(roundtrip(message, FrontEndMessage), Timing())

    assert request.inputs == [item, "next"]


def test_operands_keep_their_bits_and_what_inputs_share() -> None:
    query, places = np.arange(6, dtype=np.float32).reshape(2, 3) / 7, np.array([0.1, 3.0])
    request = PoolRequest(task="token_embed", inputs=["a", "b", "c", "d"], operands=[query, None, query, places])

    decoded = decode_pool(roundtrip(encode_pool(1, request), FrontEndMessage), request.timing).operands

    assert decoded is not None
    assert decoded[0] is decoded[2] and decoded[1] is None
    assert [(item.dtype, item.tolist()) for item in (decoded[0], decoded[3]) if item is not None] == [
        (query.dtype, query.tolist()),
        (places.dtype, places.tolist()),
    ]


@pytest.mark.parametrize("ids", [[2**63, 1], [-(2**63), 1], [10**40], [1, -(10**40)]])
def test_token_ids_of_any_size_are_decoded_unchanged(ids: list[int]) -> None:
    assert decode_input(roundtrip(TokenizeCall(encode_input(ids), True, False, False), FrontEndMessage).prompt) == ids
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
        scheduling=SchedulingParams(-(2**63), "a", 2.0, "bulk"),
        deadline_at=1.5,
        return_exceptions=True,
    )
    timing = request.timing

    decoded = decode_pool(roundtrip(encode_pool(1, request, [0]), FrontEndMessage), timing)
    assert decoded == replace(request, call=CallRef(1, frozenset({0})))


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
    results: list[PoolResult | PoolingError] = [
        make_result(
            vector(*shape, seed=index), num_tokens=index + 1, num_input_tokens=2 * index + 1, is_exact=index % 2 == 0
        )
        for index, shape in enumerate(shapes)
    ]
    message, arrays = encode_pool_results(Timing(0.25, 0.5, 1.5, pack_s=0.125, device_s=1.25), results)

    ((received, raw),) = send_and_receive([(message, arrays)])

    assert received.timing == (0.25, 0.5, 1.5, 0.125, 1.25, 0.0, 0.0)
    for before, after in zip(results, decode_pool_results(received, raw), strict=True):
        assert isinstance(before, PoolResult) and isinstance(after, PoolResult)
        assert np.array_equal(np.asarray(before.data), np.asarray(after.data))
        assert before.data.shape == after.data.shape
        assert (before.num_tokens, before.num_input_tokens) == (after.num_tokens, after.num_input_tokens)
        assert before.is_input_count_exact == after.is_input_count_exact
        assert len(after.token_ids) == 0


def test_errors_keep_their_index_among_the_results() -> None:
    first, last = NumericalError("not finite"), InputTooLong("too long", param="input", value=513)
    first.index, last.index = 0, 3
    message, arrays = encode_pool_results(
        Timing(), [first, make_result(vector(8)), make_result(vector(8, seed=1)), last]
    )

    ((received, raw),) = send_and_receive([(message, arrays)])
    zero, one, two, three = decode_pool_results(received, raw)

    assert (type(zero), str(zero)) == (NumericalError, "not finite")
    assert isinstance(one, PoolResult) and isinstance(two, PoolResult)
    assert np.array_equal(np.asarray(two.data), vector(8, seed=1))
    assert (type(three), str(three)) == (InputTooLong, str(last))
    assert isinstance(three, InputTooLong) and three.index == 3


@pytest.mark.parametrize("error_class", ERROR_CLASSES, ids=lambda error_class: error_class.__name__)
def test_an_error_of_every_class_is_decoded_unchanged(error_class: type[PoolingError]) -> None:
    error = error_class("what was wrong ☃", param="input", value=17)
    error.index = 4

    decoded = decode_error(roundtrip(ErrorResponse((0,) * 7, encode_error(error)), EngineMessage).error)

    assert type(decoded) is error_class
    assert isinstance(decoded, PoolingError)
    assert (str(decoded), decoded.status, decoded.param, decoded.index) == (str(error), error.status, "input", 4)


def test_an_unknown_error_class_is_decoded_as_its_known_base_class() -> None:
    class UnknownError(BadRequest):
        pass

    assert type(decode_error(encode_error(UnknownError("odd")))) is BadRequest


def test_an_unexpected_exception_is_decoded_as_a_runtime_error() -> None:
    decoded = decode_error(encode_error(KeyError("lost")))

    assert not isinstance(decoded, PoolingError)
    assert "KeyError: 'lost'" in str(decoded)


def test_a_message_that_quotes_half_a_surrogate_pair_can_be_sent() -> None:
    error = roundtrip(
        ErrorResponse((0,) * 7, encode_error(BadRequest("bad \ud800", value="\udfff"))), EngineMessage
    ).error

    assert (error.message, error.value) == ("bad \\ud800", "\\udfff")


def test_settings_and_metrics_are_encoded_completely() -> None:
    settings = ServerConfig(api_key=("a", "b"), served_model_name=("m",), uds="/tmp/☃", log_format="json")
    families = [
        MetricFamily("h", "help", "histogram", ("route",), (0.5, 1.0), [MetricSeries(("/x",), 2.5, [1, 0, 3])]),
        MetricFamily("g", "help", "gauge", series=[MetricSeries((), 1e300)]),
    ]

    init = Init(settings, 2, 12345.678, 1_700_000_000)
    assert roundtrip(init, SupervisorToFrontEnd) == init
    assert roundtrip(MetricsResponse(families), EngineMessage) == MetricsResponse(families)


@pytest.mark.parametrize("size", [1, 1000, BUFFER_BYTES - 40, BUFFER_BYTES, BUFFER_BYTES + 1, 20 * BUFFER_BYTES])
def test_frames_of_any_size_are_received_intact(size: int) -> None:
    small, large = vector(3), vector(size)
    frames: list[tuple[Message, Sequence[Float32Array]]] = [
        (DetokenizeResponse("first"), [small]),
        (DetokenizeResponse("x" * size), [large, small]),
        (DetokenizeResponse(""), ()),
        (DetokenizeResponse("x" * size), ()),
        (DetokenizeResponse("last"), [large]),
    ]

    received = send_and_receive(frames)

    assert [message for message, _ in received] == [message for message, _ in frames]
    assert [raw for _, raw in received] == [b"".join(array.tobytes() for array in arrays) for _, arrays in frames]


def test_large_results_are_aligned_views_of_the_received_buffer() -> None:
    results: list[PoolResult | PoolingError] = []

    async def send() -> None:
        done = asyncio.Event()

        def receive(message: Any, array_bytes: bytes | memoryview) -> None:
            results.extend(decode_pool_results(message, array_bytes))
            done.set()

        sock_a, sock_b = socket.socketpair()
        sender = await open_channel(sock_a)
        await open_channel(sock_b, receive)
        sender.send(*encode_pool_results(Timing(), [make_result(vector(1000, 384))]))
        await asyncio.wait_for(done.wait(), 20)
        sender.close()

    asyncio.run(send())
    (result,) = results
    assert isinstance(result, PoolResult)
    data = np.asarray(result.data)
    assert data.base is not None and data.flags.aligned
    assert np.array_equal(data, vector(1000, 384))


def test_a_writer_waits_for_a_slow_reader() -> None:
    async def send() -> None:
        sock_a, sock_b = socket.socketpair()
        sender = await open_channel(sock_a)
        sender.send(DetokenizeResponse("x" * 10_000_000))

        waiting = asyncio.create_task(sender.wait_writable())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await open_channel(sock_b)
        await asyncio.wait_for(waiting, 20)
        sender.close()
        await asyncio.sleep(0.01)

    asyncio.run(send())


def test_model_info_is_encoded_with_integers_of_any_size(llm: LLM) -> None:
    model_info = replace(llm.engine.model_info, tokenizer_info={"model_max_length": 1000000000000000019884624838656})

    assert decode_model_info(roundtrip(EngineReady(to_json(model_info)), EngineMessage)) == model_info


def test_rows_of_one_array_are_sent_and_decoded_as_one_array() -> None:
    rows = vector(3, 5)
    results = PoolResultBatch([make_result(row, num_tokens=index) for index, row in enumerate(rows)], rows)

    message, arrays = encode_pool_results(Timing(), results)
    ((received, raw),) = send_and_receive([(message, arrays)])
    decoded = decode_pool_results(received, raw)

    assert len(arrays) == 1 and np.shares_memory(arrays[0], rows)
    assert isinstance(decoded, PoolResultBatch) and np.array_equal(np.asarray(decoded.rows), rows)
    assert [result.num_tokens for result in decoded if isinstance(result, PoolResult)] == [0, 1, 2]


def test_messages_sent_in_one_event_loop_iteration_arrive_in_order_even_if_the_channel_closes() -> None:
    async def send() -> list[str]:
        received: list[str] = []
        closed = asyncio.Event()
        sock_a, sock_b = socket.socketpair()
        sender = await open_channel(sock_a)
        await open_channel(sock_b, lambda message, array_bytes: received.append(message.text), closed.set)
        for number in range(5):
            sender.send(DetokenizeResponse(f"{number}" * 50_000))
        sender.close()
        await asyncio.wait_for(closed.wait(), 20)
        return received

    assert asyncio.run(send()) == [f"{number}" * 50_000 for number in range(5)]


def test_variables_that_conversations_share_are_sent_once() -> None:
    variables = {"tools": ["x" * 1000]}
    inputs = [Conversation([{"role": "user", "content": "a"}], template_kwargs=variables) for _ in range(100)]
    inputs.append(Conversation([], template_kwargs={}))

    message = encode_pool(7, PoolRequest(task="embed", inputs=inputs))

    assert len(msgspec.msgpack.encode(message)) < 20_000
    assert decode_pool(roundtrip(message, FrontEndMessage), Timing()).inputs == inputs

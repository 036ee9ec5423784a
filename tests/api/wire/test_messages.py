"""Messages between front-ends and the engine process are encoded and decoded without loss."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from cenote import LLM, errors
from cenote.api.encoding import Float32Array
from cenote.api.wire.channel import BUFFER_BYTES, Channel
from cenote.api.wire.codec_errors import deserialize_error, serialize_error
from cenote.api.wire.control_messages import Init, SupervisorToFrontEnd
from cenote.api.wire.link_messages import EngineMessage
from cenote.api.wire.messages import (
    EngineDown,
    EngineReady,
    Message,
    MetricsResponse,
    Operands,
    SerializedError,
    from_json,
    to_json,
)
from cenote.api.wire.token_codec import ArrayReader, decode_images, decode_operands, encode_images, encode_operands
from cenote.api.wire.token_messages import BatchImages
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, PoolingError
from cenote.protocol.images import InputImages, PixelNormalization, ProcessedImage
from cenote.protocol.model_info import ModelInfo
from cenote.utils.metrics import MetricFamily, MetricSeries

UNUSUAL_TEXTS = ["", "a\x00b", "naïve ☃ 🧑‍🚀", "\u202eright to left", "x" * 70_000, "\U0010ffff"]
ERROR_CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, PoolingError)]


def roundtrip(message: Any, message_type: Any) -> Any:
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


def test_operands_keep_their_bits_and_what_inputs_share() -> None:
    query, places = np.arange(6, dtype=np.float32).reshape(2, 3) / 7, np.array([0.1, 3.0])

    decoded = decode_operands(roundtrip(encode_operands([query, None, query, places]), Operands))

    assert decoded is not None
    assert decoded[0] is decoded[2] and decoded[1] is None
    assert [(item.dtype, item.tolist()) for item in (decoded[0], decoded[3]) if item is not None] == [
        (query.dtype, query.tolist()),
        (places.dtype, places.tolist()),
    ]


@pytest.mark.parametrize("has_positions", [True, False])
def test_images_keep_their_bits_and_are_not_copied(has_positions: bool) -> None:
    pixels = np.arange(18, dtype=np.float32).reshape(3, 6) / 7
    odd = np.arange(15, dtype=np.uint8).reshape(5, 3)  # not a multiple of 8 bytes
    ids, mask = np.arange(4, dtype=np.int32), np.array([True, False, True, True])
    first = ProcessedImage(odd, ((1, 5),), ids, mask, (9, 8), b"1", PixelNormalization(0.1, (1.0, 2.0, 3.0)))
    second = ProcessedImage(pixels, ((1, 1), (1, 2)), ids, mask, (7, 6), b"2", row_order=np.array([1, -1, 0]))
    axes = np.arange(12).reshape(3, 4) if has_positions else None
    inputs = [None, InputImages((second, first), np.arange(6), axes), InputImages((first,), np.arange(3), axes)]

    message, arrays = encode_images(inputs)
    data = bytearray(8) + b"".join(array.tobytes() for array in arrays)
    decoded = decode_images(roundtrip(message, BatchImages), [2, 4, 4], ArrayReader(data, 8))

    assert any(array is pixels for array in arrays)
    assert decoded[0] is None and decoded[1] is not None and decoded[2] is not None
    assert decoded[2].images[0] is decoded[1].images[1]
    assert decoded[1].cache_key == b"21" and decoded[1].token_indices.tolist() == [0, 1, 2, 3, 4, 5]
    positions = decoded[2].mrope_positions
    assert (None if positions is None else positions.tolist()) == (None if axes is None else axes.tolist())
    for one, other in zip(decoded[1].images, (second, first), strict=True):
        assert one.patches.dtype == other.patches.dtype and one.patches.tolist() == other.patches.tolist()
        assert one.patches.flags.writeable and np.shares_memory(one.patches, np.frombuffer(data, np.uint8))
        assert (one.patch_grids, one.num_embeds, one.normalization) == (other.patch_grids, 3, other.normalization)
        assert (one.row_order is None) == (other.row_order is None)


@pytest.mark.parametrize("error_class", ERROR_CLASSES, ids=lambda error_class: error_class.__name__)
def test_an_error_of_every_class_is_decoded_unchanged(error_class: type[PoolingError]) -> None:
    error = error_class("what was wrong ☃", param="input", value=17)
    error.index = 4

    decoded = deserialize_error(roundtrip(serialize_error(error), SerializedError))

    assert type(decoded) is error_class
    assert isinstance(decoded, PoolingError)
    assert (str(decoded), decoded.status, decoded.param, decoded.index) == (str(error), error.status, "input", 4)


def test_an_unknown_error_class_is_decoded_as_its_known_base_class() -> None:
    class UnknownError(BadRequest):
        pass

    assert type(deserialize_error(serialize_error(UnknownError("odd")))) is BadRequest


def test_an_unexpected_exception_is_decoded_as_a_runtime_error() -> None:
    decoded = deserialize_error(serialize_error(KeyError("lost")))

    assert not isinstance(decoded, PoolingError)
    assert "KeyError: 'lost'" in str(decoded)


def test_a_message_that_quotes_half_a_surrogate_pair_can_be_sent() -> None:
    error = roundtrip(serialize_error(BadRequest("bad \ud800", value="\udfff")), SerializedError)

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
        (EngineDown("first"), [small]),
        (EngineDown("x" * size), [large, small]),
        (EngineDown(""), ()),
        (EngineDown("x" * size), ()),
        (EngineDown("last"), [large]),
    ]

    received = send_and_receive(frames)

    assert [message for message, _ in received] == [message for message, _ in frames]
    assert [raw for _, raw in received] == [b"".join(array.tobytes() for array in arrays) for _, arrays in frames]


async def test_large_arrays_are_aligned_views_of_the_received_buffer() -> None:
    rows, seen = vector(1000, 384), []

    done = asyncio.Event()

    def receive(message: Any, array_bytes: bytes | memoryview) -> None:
        seen.append(np.frombuffer(array_bytes, np.float32).reshape(rows.shape))
        done.set()

    sock_a, sock_b = socket.socketpair()
    sender = await open_channel(sock_a)
    await open_channel(sock_b, receive)
    sender.send(EngineDown("with an array"), [rows])
    await asyncio.wait_for(done.wait(), 20)
    sender.close()
    assert seen[0].base is not None and seen[0].flags.aligned
    assert np.array_equal(seen[0], rows)


async def test_a_writer_waits_for_a_slow_reader() -> None:
    sock_a, sock_b = socket.socketpair()
    sender = await open_channel(sock_a)
    sender.send(EngineDown("x" * 10_000_000))

    waiting = asyncio.create_task(sender.wait_writable())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await open_channel(sock_b)
    await asyncio.wait_for(waiting, 20)
    sender.close()
    await asyncio.sleep(0.01)


def test_model_info_is_encoded_with_integers_of_any_size(llm: LLM) -> None:
    model_info = replace(llm.engine.model_info, tokenizer_info={"model_max_length": 1000000000000000019884624838656})

    message = roundtrip(EngineReady(to_json(model_info)), EngineMessage)

    assert from_json(message.model_info, type=ModelInfo) == model_info


async def test_messages_sent_in_one_event_loop_iteration_arrive_in_order_even_if_the_channel_closes() -> None:
    received: list[str] = []
    closed = asyncio.Event()
    sock_a, sock_b = socket.socketpair()
    sender = await open_channel(sock_a)
    await open_channel(sock_b, lambda message, array_bytes: received.append(message.reason), closed.set)
    for number in range(5):
        sender.send(EngineDown(f"{number}" * 50_000))
    sender.close()
    await asyncio.wait_for(closed.wait(), 20)

    assert received == [f"{number}" * 50_000 for number in range(5)]

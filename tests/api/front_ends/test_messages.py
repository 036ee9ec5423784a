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
from cenote.api.encoding import Floats
from cenote.api.front_ends.channel import BUFFER_BYTES, Channel
from cenote.api.front_ends.codec_requests import (
    about_of,
    as_error,
    as_fault,
    as_ids,
    as_input,
    as_item,
    as_json,
    plain_ids,
    pool_message,
    pool_request,
    pooled,
    score_message,
    score_request,
    scored,
    scores_message,
    vectors_message,
)
from cenote.api.front_ends.messages import (
    Counted,
    Failed,
    FromEngine,
    FromFrontEnd,
    Message,
    Ready,
    Text,
    Tokenize,
    Welcome,
)
from cenote.config.engine import ServerConfig
from cenote.errors import BadRequest, InputTooLong, NumericalError, PoolingError, Unsupported
from cenote.protocol.input_types import Chat, Embeds, Pair, Parts
from cenote.protocol.requests import (
    Pooled,
    PoolingParams,
    PoolRequest,
    Scored,
    ScoreRequest,
    Stacked,
    Timing,
    Tokenization,
)
from cenote.utils.metrics import Family, Series

HARD_TEXTS = ["", "a\x00b", "naïve ☃ 🧑‍🚀", "\u202eright to left", "x" * 70_000, "\U0010ffff"]
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PoolingError)]


def over_the_wire(message: Message, kind: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)


def ignore(*anything: Any) -> None:
    pass


async def open_channel(
    end: socket.socket, receive: Callable[..., None] = ignore, ended: Callable[[], None] = ignore
) -> Channel[Any]:
    channel: Channel[Any] = Channel(FromEngine, receive, ended)
    await channel.connect(end)
    return channel


def sent(messages: Sequence[tuple[Message, Sequence[Floats]]]) -> list[tuple[Any, bytes]]:
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


def vector(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def answer(data: Any, num_tokens: int = 3, given: int = 3, exact: bool = True) -> Pooled:
    return Pooled(data, np.arange(num_tokens, dtype=np.int32), num_tokens, given, exact)


@pytest.mark.parametrize(
    "item",
    [
        *HARD_TEXTS,
        [0, 1, 2**31, -5],
        [],
        Pair("q ☃", "d", "{{ query }}", {"k": [1, None, 1.5]}),
        Chat([{"role": "user", "content": [{"type": "text", "text": "☃"}]}], None, {"n": 10**30}, True, True, ("a",)),
        Parts([{"type": "text", "text": "☃"}, {"image": "data:image/png;base64,AA=="}], "inputs[3].content"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_every_kind_of_input_comes_back_as_it_was(item: Any) -> None:
    message = pool_message(7, PoolRequest(task="embed", inputs=[item, "next"]))

    request = pool_request(over_the_wire(message, FromFrontEnd), Timing())

    assert request.inputs == [item, "next"]


@pytest.mark.parametrize("ids", [[2**63, 1], [-(2**63), 1], [10**40], [1, -(10**40)]])
def test_token_ids_of_any_size_reach_the_engine_which_refuses_them(ids: list[int]) -> None:
    assert as_input(over_the_wire(Tokenize(1, as_item(ids), True, False), FromFrontEnd).item) == ids
    assert plain_ids(as_ids(ids)) == ids


def test_everything_else_of_a_request_travels_with_it() -> None:
    request = PoolRequest(
        task="token_embed",
        inputs=["a"],
        params=[PoolingParams(use_activation=False, dimensions=32, extra_kwargs={"a": [1, "b"]})],
        tokenization=Tokenization(truncate_prompt_tokens=-1, truncation_side="left", add_special_tokens=False),
        prompt="p: ",
        prompt_name="query",
        role="query",
        media_kwargs={"max_pixels": 2**70},
        priority=-(2**63),
        tenant="a",
        keep_going=True,
    )
    timing = request.timing

    assert pool_request(over_the_wire(pool_message(1, request), FromFrontEnd), timing) == request


def test_two_lists_to_compare_travel_with_everything_that_was_said_of_them() -> None:
    request = ScoreRequest(
        queries=HARD_TEXTS,
        documents=[Parts([{"type": "image_url", "image_url": {"url": "☃"}}], "documents[0]")] * len(HARD_TEXTS),
        score_type="bi-encoder",
        params=PoolingParams(use_activation=True),
        tokenization=Tokenization(truncate_prompt_tokens=5),
        max_tokens_per_query=3,
        max_tokens_per_doc=4,
        template="{{ query }}",
        template_kwargs={"instruction": "☃", "n": 2**70},
        media_kwargs={"max_pixels": [1, None]},
        priority=3,
        tenant="b",
        keep_going=True,
    )

    assert score_request(over_the_wire(score_message(1, request), FromFrontEnd), request.timing) == request


def test_embeddings_as_input_are_refused_with_what_would_work() -> None:
    with pytest.raises(Unsupported, match="--api-server-count 1"):
        as_item(Embeds(vector(2, 3)))  # type: ignore[arg-type]


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
def test_answers_of_any_shape_come_back_bit_for_bit(shapes: list[tuple[int, ...]]) -> None:
    answers: list[Pooled | PoolingError] = [
        answer(vector(*shape, seed=place), num_tokens=place + 1, given=2 * place + 1, exact=place % 2 == 0)
        for place, shape in enumerate(shapes)
    ]
    message, numbers = vectors_message(5, Timing(0.25, 0.5, 1.5), answers)

    ((received, raw),) = sent([(message, numbers)])

    assert (received.number, received.timing) == (5, (0.25, 0.5, 1.5))
    for before, after in zip(answers, pooled(received, raw), strict=True):
        assert isinstance(before, Pooled) and isinstance(after, Pooled)
        assert np.array_equal(np.asarray(before.data), np.asarray(after.data))
        assert before.data.shape == after.data.shape
        assert (before.num_tokens, before.num_input_tokens) == (after.num_tokens, after.num_input_tokens)
        assert before.input_tokens_exact == after.input_tokens_exact
        assert len(after.token_ids) == 0


def test_errors_stay_at_their_place_among_the_answers() -> None:
    first, last = NumericalError("not finite"), InputTooLong("too long", param="input", value=513)
    first.index, last.index = 0, 3
    message, numbers = vectors_message(1, Timing(), [first, answer(vector(8)), answer(vector(8, seed=1)), last])

    ((received, raw),) = sent([(message, numbers)])
    zero, one, two, three = pooled(received, raw)

    assert (type(zero), str(zero)) == (NumericalError, "not finite")
    assert isinstance(one, Pooled) and isinstance(two, Pooled)
    assert np.array_equal(np.asarray(two.data), vector(8, seed=1))
    assert (type(three), str(three)) == (InputTooLong, str(last))
    assert isinstance(three, InputTooLong) and three.index == 3


def test_scores_keep_every_bit_and_their_order() -> None:
    answers: list[Scored | PoolingError] = [
        Scored(1 / 3, np.zeros(2, dtype=np.int32), 2, 9, False),
        NumericalError("no"),
        Scored(5e-324, np.zeros(2, dtype=np.int32), 2, 2),
    ]

    one, two, three = scored(over_the_wire(scores_message(1, Timing(), answers), FromEngine))

    assert isinstance(one, Scored) and isinstance(three, Scored)
    assert (one.score, one.num_tokens, one.num_input_tokens, one.input_tokens_exact) == (1 / 3, 2, 9, False)
    assert isinstance(two, NumericalError)
    assert three.score == 5e-324


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_of_every_class_comes_back_as_what_it_was(kind: type[PoolingError]) -> None:
    error = kind("what was wrong ☃", param="input", value=17)
    error.index = 4

    back = as_error(over_the_wire(Failed(1, (0, 0, 0), as_fault(error)), FromEngine).fault)

    assert type(back) is kind
    assert isinstance(back, PoolingError)
    assert (str(back), back.status, back.param, back.index) == (str(error), error.status, "input", 4)


def test_an_error_that_nobody_here_knows_comes_back_as_its_nearest_relative() -> None:
    class Odd(BadRequest):
        pass

    assert type(as_error(as_fault(Odd("odd")))) is BadRequest


def test_a_bug_is_no_error_of_ours_at_the_other_end_either() -> None:
    back = as_error(as_fault(KeyError("lost")))

    assert not isinstance(back, PoolingError)
    assert "KeyError: 'lost'" in str(back)


def test_a_message_that_quotes_half_a_surrogate_pair_can_be_sent() -> None:
    fault = over_the_wire(Failed(1, (0, 0, 0), as_fault(BadRequest("bad \ud800", value="\udfff"))), FromEngine).fault

    assert (fault.message, fault.value) == ("bad \\ud800", "\\udfff")


def test_settings_and_statistics_travel_whole() -> None:
    settings = ServerConfig(api_key=("a", "b"), served_model_name=("m",), uds="/tmp/☃", log_format="json")
    families = [
        Family("h", "help", "histogram", ("route",), (0.5, 1.0), [Series(("/x",), 2.5, [1, 0, 3])]),
        Family("g", "help", "gauge", series=[Series((), 1e300)]),
    ]

    welcome = Welcome(settings, 2, 12345.678, 1_700_000_000)
    assert over_the_wire(welcome, FromEngine) == welcome
    assert over_the_wire(Counted(1, families), FromEngine) == Counted(1, families)


@pytest.mark.parametrize("size", [1, 1000, BUFFER_BYTES - 40, BUFFER_BYTES, BUFFER_BYTES + 1, 20 * BUFFER_BYTES])
def test_frames_of_any_size_follow_each_other_unharmed(size: int) -> None:
    small, large = vector(3), vector(size)
    frames: list[tuple[Message, Sequence[Floats]]] = [
        (Text(1, "first"), [small]),
        (Text(2, "x" * size), [large, small]),
        (Text(3, ""), ()),
        (Text(4, "x" * size), ()),
        (Text(5, "last"), [large]),
    ]

    received = sent(frames)

    assert [(message.number, message.text) for message, _ in received] == [
        (message.number, message.text)  # type: ignore[attr-defined]
        for message, _ in frames
    ]
    assert [raw for _, raw in received] == [b"".join(each.tobytes() for each in numbers) for _, numbers in frames]


def test_large_answers_are_views_of_what_was_received_and_lie_where_numbers_should() -> None:
    seen: list[Pooled | PoolingError] = []

    async def send() -> None:
        done = asyncio.Event()

        def receive(message: Any, numbers: bytes | memoryview) -> None:
            seen.extend(pooled(message, numbers))
            done.set()

        here, there = socket.socketpair()
        sender = await open_channel(here)
        await open_channel(there, receive)
        sender.send(*vectors_message(3, Timing(), [answer(vector(1000, 384))]))
        await asyncio.wait_for(done.wait(), 20)
        sender.close()

    asyncio.run(send())
    (only,) = seen
    assert isinstance(only, Pooled)
    data = np.asarray(only.data)
    assert data.base is not None and data.flags.aligned
    assert np.array_equal(data, vector(1000, 384))


def test_a_writer_waits_for_a_slow_reader() -> None:
    async def send() -> None:
        here, there = socket.socketpair()
        sender = await open_channel(here)
        sender.send(Text(1, "x" * 10_000_000))

        waiting = asyncio.create_task(sender.room())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await open_channel(there)
        await asyncio.wait_for(waiting, 20)
        sender.close()
        await asyncio.sleep(0.01)

    asyncio.run(send())


def test_what_a_model_says_of_itself_travels_with_numbers_of_any_size(llm: LLM) -> None:
    about = replace(llm.engine.about, tokenizer_info={"model_max_length": 1000000000000000019884624838656})

    assert about_of(over_the_wire(Ready(as_json(about)), FromEngine)) == about


def test_rows_of_one_array_travel_as_it_is_and_come_back_as_one() -> None:
    rows = vector(3, 5)
    answers = Stacked([answer(row, num_tokens=place) for place, row in enumerate(rows)], rows)

    message, numbers = vectors_message(1, Timing(), answers)
    ((received, raw),) = sent([(message, numbers)])
    back = pooled(received, raw)

    assert len(numbers) == 1 and np.shares_memory(numbers[0], rows)
    assert isinstance(back, Stacked) and np.array_equal(np.asarray(back.rows), rows)
    assert [each.num_tokens for each in back if isinstance(each, Pooled)] == [0, 1, 2]


def test_what_is_said_in_one_turn_comes_whole_and_in_order_even_if_the_line_closes_then() -> None:
    async def talk() -> list[str]:
        heard: list[str] = []
        left = asyncio.Event()
        here, there = socket.socketpair()
        sender = await open_channel(here)
        await open_channel(there, lambda message, numbers: heard.append(message.text), left.set)
        for number in range(5):
            sender.send(Text(number, f"{number}" * 50_000))
        sender.close()
        await asyncio.wait_for(left.wait(), 20)
        return heard

    assert asyncio.run(talk()) == [f"{number}" * 50_000 for number in range(5)]

"""The engine as a front-end process sees it: every call becomes a message to the process that has the model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from cenote.api.front_ends.channel import Channel
from cenote.api.front_ends.codec_requests import (
    as_error,
    as_ids,
    as_item,
    as_json,
    from_json,
    pool_message,
    pooled,
    score_message,
    scored,
    tag_message,
    tagged,
)
from cenote.api.front_ends.messages import (
    AddAdapter,
    Answer,
    Cancel,
    Count,
    Counted,
    Detokenize,
    Done,
    DropAdapter,
    Failed,
    FromEngine,
    Process,
    Question,
    Result,
    Scores,
    Seen,
    Tags,
    Text,
    Tokenize,
    Tokens,
    Vectors,
)
from cenote.errors import BadRequest, EngineStopped, PoolingError
from cenote.protocol.input_types import Input
from cenote.protocol.requests import (
    About,
    EntityRequest,
    PluginRequest,
    Pooled,
    PoolRequest,
    Processed,
    Scored,
    ScoreRequest,
    Tagged,
    Timing,
    Tokenized,
)
from cenote.utils.metrics import Family

Expected = TypeVar("Expected", Vectors, Scores, Tags, Tokens, Text, Result, Done, Counted)

# replies that are reported together; fewer wait for the next regular report
REPLIES_AT_ONCE = 64


class RemoteEngine:
    """Answers come through `answered`; whoever owns the channel calls it."""

    def __init__(self, about: About, channel: Channel[FromEngine]) -> None:
        self.about = about
        self.dead: PoolingError | None = None
        self._channel = channel
        self._lost = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[Answer, bytes | memoryview]]] = {}
        self._replies: list[tuple[str, str, int, float]] = []
        self._told = 0  # requests in flight, as the engine's process knows them

    async def pool(self, request: PoolRequest) -> list[Pooled | PoolingError]:
        answer, numbers = await self._ask(pool_message(next(self._numbers), request), Vectors, request.timing)
        return pooled(answer, numbers)

    async def score(self, request: ScoreRequest) -> list[Scored | PoolingError]:
        answer, _ = await self._ask(score_message(next(self._numbers), request), Scores, request.timing)
        return scored(answer)

    async def entities(self, request: EntityRequest) -> list[Tagged]:
        answer, _ = await self._ask(tag_message(next(self._numbers), request), Tags, request.pool.timing)
        return tagged(answer)

    async def tokenize(
        self,
        item: Input,
        *,
        add_special_tokens: bool = True,
        strings: bool = False,
        media_kwargs: Mapping[str, Any] | None = None,
    ) -> Tokenized:
        kwargs = as_json(media_kwargs or {})
        question = Tokenize(next(self._numbers), as_item(item), add_special_tokens, strings, kwargs)
        answer, _ = await self._ask(question, Tokens)
        return Tokenized(answer.token_ids, answer.strings)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        answer, _ = await self._ask(Detokenize(next(self._numbers), as_ids(token_ids)), Text)
        return answer.text

    async def process(self, request: PluginRequest) -> Processed:
        data = as_json(request.data)
        question = Process(
            next(self._numbers), data, request.request_id, request.tokenization, request.priority, request.tenant
        )
        answer, _ = await self._ask(question, Result, request.timing)
        return Processed(from_json(answer.data), answer.num_inputs, answer.num_tokens, answer.num_truncated)

    async def load_adapter(self, name: str, place: str, *, in_place: bool = False) -> None:
        await self._ask(AddAdapter(next(self._numbers), name, place, in_place), Done)

    async def unload_adapter(self, name: str) -> None:
        await self._ask(DropAdapter(next(self._numbers), name), Done)

    async def statistics(self) -> list[Family]:
        self._tell()
        answer, _ = await self._ask(Count(next(self._numbers)), Counted)
        return answer.families

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Counted in the engine's process, so that every front-end can show the sum."""
        self._replies.append((handler, method, status, seconds))
        if len(self._replies) >= REPLIES_AT_ONCE:
            self._tell()

    def report(self, num_in_flight: int) -> None:
        """Tell what happened since the last time, if anything did."""
        if self._replies or num_in_flight != self._told:
            self._told = num_in_flight
            self._tell()

    def answered(self, answer: Answer, numbers: bytes | memoryview) -> None:
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():  # else the client went while the answer was on its way
            waiting.set_result((answer, numbers))

    def lost(self) -> None:
        """The engine's process has gone: nobody who waits will hear from it."""
        self._lost = True
        self.dead = self.dead or gone()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(gone())

    async def _ask(
        self, question: Question, expected: type[Expected], timing: Timing | None = None
    ) -> tuple[Expected, bytes | memoryview]:
        if self._lost:
            raise gone()
        future = asyncio.get_running_loop().create_future()
        self._waiting[question.number] = future
        try:
            await self._channel.room()
            self._send(question)
            answer, numbers = await future
        except asyncio.CancelledError:
            self._channel.send(Cancel(question.number))
            raise
        finally:
            del self._waiting[question.number]
        if timing is not None and isinstance(answer, Vectors | Scores | Tags | Result | Failed):
            timing.queue, timing.tokenize, timing.inference = answer.timing
        if isinstance(answer, Failed):
            raise as_error(answer.fault)
        assert isinstance(answer, expected), f"{type(answer).__name__} is no answer to {type(question).__name__}"
        return answer, numbers

    def _send(self, question: Question) -> None:
        try:
            self._channel.send(question)
        except (OverflowError, UnicodeEncodeError) as error:
            raise BadRequest(f"the request cannot be passed on to the engine: {error}") from error

    def _tell(self) -> None:
        self._channel.send(Seen(self._replies, self._told))
        self._replies = []


def gone() -> EngineStopped:
    return EngineStopped("the engine's process ended before the answer came")

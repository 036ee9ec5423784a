"""The engine's side of one front-end: every question is a task, and ends with whoever asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from cenote.api.encoding import Floats
from cenote.api.front_ends.channel import Channel
from cenote.api.front_ends.codec_requests import (
    as_fault,
    as_input,
    as_json,
    entity_request,
    from_json,
    plain_ids,
    plugin_request,
    pool_request,
    score_request,
    scores_message,
    tags_message,
    times,
    vectors_message,
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
    FromFrontEnd,
    Pool,
    Process,
    Question,
    Result,
    Score,
    Seen,
    Tag,
    Text,
    Tokenize,
    Tokens,
)
from cenote.errors import PoolingError
from cenote.protocol.requests import Engine, Timing

logger = logging.getLogger("cenote")


async def nobody() -> None:
    """There is no other front-end to tell."""


class Answering:
    def __init__(
        self, engine: Engine, channel: Channel[FromFrontEnd], renew: Callable[[], Awaitable[None]] = nobody
    ) -> None:
        self.engine = engine
        self.channel = channel
        self.renew = renew  # has every front-end know what the model says of itself now
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.changes: set[asyncio.Task[None]] = set()

    def receive(self, message: Question | Cancel | Seen) -> None:
        if isinstance(message, Seen):
            for reply in message.replies:
                self.engine.observe_http(*reply)
        elif isinstance(message, Cancel):
            if task := self.tasks.get(message.number):
                task.cancel()
        else:
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self.tasks[message.number] = task
            task.add_done_callback(lambda _: self.tasks.pop(message.number, None))

    def abandon(self) -> None:
        """Nobody is there any more to be answered."""
        for task in list(self.tasks.values()):
            task.cancel()

    async def _answer(self, question: Question) -> None:
        timing = Timing()
        try:
            answer, numbers = await self._ask(question, timing)
            await self.channel.room()
            self.channel.send(answer, numbers)
        except Exception as error:
            if not isinstance(error, PoolingError):
                logger.exception("a question of a front-end could not be answered")
            self.channel.send(Failed(question.number, times(timing), as_fault(error)))

    async def _ask(self, question: Question, timing: Timing) -> tuple[Answer, Sequence[Floats]]:
        number, engine = question.number, self.engine
        if isinstance(question, Pool):
            return vectors_message(number, timing, await engine.pool(pool_request(question, timing)))
        if isinstance(question, Score):
            return scores_message(number, timing, await engine.score(score_request(question, timing))), ()
        if isinstance(question, Tag):
            return tags_message(number, timing, await engine.entities(entity_request(question, timing))), ()
        if isinstance(question, Tokenize):
            tokenized = await engine.tokenize(
                as_input(question.item),
                add_special_tokens=question.add_special_tokens,
                strings=question.strings,
                media_kwargs=from_json(question.media_kwargs),
            )
            return Tokens(number, tokenized.token_ids, tokenized.strings), ()
        if isinstance(question, Detokenize):
            return Text(number, await engine.detokenize(plain_ids(question.token_ids))), ()
        if isinstance(question, Process):
            made = await engine.process(plugin_request(question, timing))
            counts = made.num_inputs, made.num_tokens, made.num_truncated
            return Result(number, times(timing), as_json(made.data), *counts), ()
        if isinstance(question, AddAdapter):
            await self._change(engine.load_adapter(question.name, question.place, in_place=question.in_place))
            return Done(number), ()
        if isinstance(question, DropAdapter):
            await self._change(engine.unload_adapter(question.name))
            return Done(number), ()
        assert isinstance(question, Count), "there are no other questions"
        return Counted(number, await engine.statistics()), ()

    async def _change(self, change: Awaitable[None]) -> None:
        """To its end, with everybody told, even if whoever asked has gone."""

        async def whole() -> None:
            await change
            await self.renew()

        task = asyncio.get_running_loop().create_task(whole())
        self.changes.add(task)
        task.add_done_callback(self.changes.discard)
        await asyncio.shield(task)

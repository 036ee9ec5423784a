"""Images are read before their request is let in, on threads of their own: whoever sends none never waits for them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from cenote.engine.preprocessing.sub_requests import inputs_at_once
from cenote.errors import EngineStopped, Overloaded, PoolingError
from cenote.inputs.images.multimodal_processor import Seeing, has_images
from cenote.protocol.input_types import Chat, Input, Parts, PartsPair, Pictured, Refused, input_size
from cenote.protocol.requests import PoolRequest

logger = logging.getLogger("cenote")

# at a time; each holds an image in memory, and the model needs the processor as well
NUM_THREADS = max(2, min(8, (os.cpu_count() or 1) // 2))
WITH_IMAGES = (Chat, Parts, PartsPair, Pictured)


class Looking:
    def __init__(self, seeing: Seeing | None, max_chars: int) -> None:
        """`max_chars`: what may wait to be read, in characters; what comes then is told to come again."""
        self.seeing = seeing
        self.max_chars = max_chars
        self.num_chars = 0  # that wait
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="cenote-images")
        self._home = os.getpid()  # threads do not follow a fork
        self._closed = False

    @property
    def at_once(self) -> int:
        """How many inputs of a request are read together."""
        return inputs_at_once(None if self.seeing is None else self.seeing.reader.most_bytes())

    async def read(self, request: PoolRequest) -> PoolRequest:
        """The request with its images read; an input with one that cannot be is refused, the others are not."""
        places = self.places(request)
        if not places:
            return request
        loop, read = asyncio.get_running_loop(), self._reader(request)
        with self._room(sum(input_size(request.inputs[place]) for place in places)), self._until_closed():
            items = [loop.run_in_executor(self._threads, read, request.inputs[place]) for place in places]
            return _with(request, dict(zip(places, await asyncio.gather(*items), strict=True)))

    def read_sync(self, request: PoolRequest) -> PoolRequest:
        places = self.places(request)
        if not places:
            return request
        read = self._reader(request)
        with self._until_closed():
            items = self._threads.map(read, [request.inputs[place] for place in places])
            return _with(request, dict(zip(places, items, strict=True)))

    async def read_one(self, item: Input, options: Mapping[str, Any]) -> Input:
        if self.seeing is None or not has_images(item):
            return item
        read = partial(_read, self.seeing, options, item)
        with self._room(input_size(item)), self._until_closed():
            found: Input = await asyncio.get_running_loop().run_in_executor(self._threads, read)
            return found

    @contextmanager
    def _room(self, num_chars: int) -> Iterator[None]:
        """Only while there is some; alone, any request is welcome."""
        if self.num_chars and self.num_chars + num_chars > self.max_chars:
            raise Overloaded(
                f"images of {self.num_chars} characters wait to be read, and {self.max_chars} is the most "
                "(--max-waiting-chars); try again soon"
            )
        self.num_chars += num_chars
        try:
            yield
        finally:
            self.num_chars -= num_chars

    @contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Whoever waits when the threads end is told so, as everybody is; who was cancelled, is."""
        try:
            yield
        except (CancelledError, asyncio.CancelledError, RuntimeError) as error:
            if not self._closed or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
                raise
            raise EngineStopped("the engine was stopped before the images were read") from None

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def places(self, request: PoolRequest) -> list[int]:
        """Where the inputs are that have images."""
        if self.seeing is None or os.getpid() != self._home:  # which the engine refuses in its own words
            return []
        return [
            place for place, item in enumerate(request.inputs) if isinstance(item, WITH_IMAGES) and has_images(item)
        ]

    def _reader(self, request: PoolRequest) -> Callable[[Input], Input]:
        """What reads its inputs: an image that several of them have, as the query of many documents is, only once."""
        assert self.seeing is not None, "only then there is something to read"
        return partial(_read, replace(self.seeing, known={}), request.media_kwargs)


def _read(seeing: Seeing, options: Mapping[str, Any], item: Input) -> Input:
    try:
        return seeing.read(item, options)
    except PoolingError as error:
        return Refused(error)
    except Exception as error:  # whatever Pillow, numpy or torch raises; the other inputs cannot help it
        logger.exception("an image could not be read")
        return Refused(PoolingError(f"an image of this input could not be read: {type(error).__name__}: {error}"))


def _is_cancelled() -> bool:
    """Whether somebody wants the running task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _with(request: PoolRequest, items: Mapping[int, Input]) -> PoolRequest:
    return replace(request, inputs=[items.get(place, item) for place, item in enumerate(request.inputs)])

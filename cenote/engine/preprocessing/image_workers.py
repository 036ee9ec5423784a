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

from cenote.engine.preprocessing.sub_requests import compute_sub_request_size
from cenote.errors import EngineStopped, Overloaded, PoolingError
from cenote.inputs.images.multimodal_processor import MultimodalProcessor, has_images
from cenote.protocol.input_types import (
    ContentParts,
    Conversation,
    Input,
    InvalidInput,
    MultimodalPair,
    MultimodalPrompt,
    compute_input_size,
)
from cenote.protocol.requests import PoolRequest

logger = logging.getLogger("cenote")

# at a time; each holds an image in memory, and the model needs the processor as well
NUM_WORKERS = max(2, min(8, (os.cpu_count() or 1) // 2))
MULTIMODAL_TYPES = (Conversation, ContentParts, MultimodalPair, MultimodalPrompt)


class ImageWorkerPool:
    def __init__(self, multimodal: MultimodalProcessor | None, max_waiting_chars: int) -> None:
        """`max_chars`: what may wait to be read, in characters; what comes then is told to come again."""
        self.multimodal = multimodal
        self.max_waiting_chars = max_waiting_chars
        self.num_waiting_chars = 0  # that wait
        self._executor = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="cenote-images")
        self._pid = os.getpid()  # threads do not follow a fork
        self._is_closed = False

    @property
    def sub_request_size(self) -> int:
        """How many inputs of a request are read together."""
        return compute_sub_request_size(
            None if self.multimodal is None else self.multimodal.image_processor.max_image_bytes()
        )

    async def preprocess(self, request: PoolRequest) -> PoolRequest:
        """The request with its images read; an input with one that cannot be is refused, the others are not."""
        places = self.find_image_indices(request)
        if not places:
            return request
        loop, read = asyncio.get_running_loop(), self._make_preprocess(request)
        with self._reserve(sum(compute_input_size(request.inputs[place]) for place in places)), self._stopped_errors():
            items = [loop.run_in_executor(self._executor, read, request.inputs[place]) for place in places]
            return _replace_inputs(request, dict(zip(places, await asyncio.gather(*items), strict=True)))

    def preprocess_sync(self, request: PoolRequest) -> PoolRequest:
        places = self.find_image_indices(request)
        if not places:
            return request
        read = self._make_preprocess(request)
        with self._stopped_errors():
            items = self._executor.map(read, [request.inputs[place] for place in places])
            return _replace_inputs(request, dict(zip(places, items, strict=True)))

    async def preprocess_input(self, item: Input, mm_processor_kwargs: Mapping[str, Any]) -> Input:
        if self.multimodal is None or not has_images(item):
            return item
        read = partial(_preprocess_or_reject, self.multimodal, mm_processor_kwargs, item)
        with self._reserve(compute_input_size(item)), self._stopped_errors():
            found: Input = await asyncio.get_running_loop().run_in_executor(self._executor, read)
            return found

    @contextmanager
    def _reserve(self, num_chars: int) -> Iterator[None]:
        """Only while there is some; alone, any request is welcome."""
        if self.num_waiting_chars and self.num_waiting_chars + num_chars > self.max_waiting_chars:
            raise Overloaded(
                f"images of {self.num_waiting_chars} characters wait to be read, and {self.max_waiting_chars} is the "
                f"most "
                "(--max-waiting-chars); try again soon"
            )
        self.num_waiting_chars += num_chars
        try:
            yield
        finally:
            self.num_waiting_chars -= num_chars

    @contextmanager
    def _stopped_errors(self) -> Iterator[None]:
        """Whoever waits when the threads end is told so, as everybody is; who was cancelled, is."""
        try:
            yield
        except (CancelledError, asyncio.CancelledError, RuntimeError) as error:
            if not self._is_closed or (isinstance(error, asyncio.CancelledError) and _is_task_cancelled()):
                raise
            raise EngineStopped("the engine was stopped before the images were read") from None

    def close(self) -> None:
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def find_image_indices(self, request: PoolRequest) -> list[int]:
        """Where the inputs are that have images."""
        if self.multimodal is None or os.getpid() != self._pid:  # which the engine refuses in its own words
            return []
        return [
            place
            for place, item in enumerate(request.inputs)
            if isinstance(item, MULTIMODAL_TYPES) and has_images(item)
        ]

    def _make_preprocess(self, request: PoolRequest) -> Callable[[Input], Input]:
        """What reads its inputs: an image that several of them have, as the query of many documents is, only once."""
        assert self.multimodal is not None, "only then there is something to read"
        return partial(_preprocess_or_reject, replace(self.multimodal, image_cache={}), request.mm_processor_kwargs)


def _preprocess_or_reject(
    multimodal: MultimodalProcessor, mm_processor_kwargs: Mapping[str, Any], item: Input
) -> Input:
    try:
        return multimodal.process(item, mm_processor_kwargs)
    except PoolingError as error:
        return InvalidInput(error)
    except Exception as error:  # whatever Pillow, numpy or torch raises; the other inputs cannot help it
        logger.exception("an image could not be read")
        return InvalidInput(PoolingError(f"an image of this input could not be read: {type(error).__name__}: {error}"))


def _is_task_cancelled() -> bool:
    """Whether somebody wants the running task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _replace_inputs(request: PoolRequest, items: Mapping[int, Input]) -> PoolRequest:
    return replace(request, inputs=[items.get(place, item) for place, item in enumerate(request.inputs)])

"""Preprocess images in worker threads before requests are checked, so that those without images never wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cenote.engine.preprocessing.sub_requests import SubRequest, compute_sub_request_size, split_request
from cenote.errors import EngineStopped, PoolingError, make_internal_error
from cenote.inputs.images.multimodal_processor import MultimodalProcessor, has_images
from cenote.protocol.input_types import (
    ContentParts,
    Conversation,
    Input,
    InvalidInput,
    MultimodalPair,
    MultimodalPrompt,
)
from cenote.protocol.requests import PoolRequest
from cenote.utils.busy_stages import BusyStages
from cenote.utils.fork import get_process_id
from cenote.utils.system_limits import count_cpus

logger = logging.getLogger("cenote")

# each worker holds an image in memory, and the model needs CPU cores as well
NUM_WORKERS = max(2, min(8, count_cpus() // 2))
MULTIMODAL_TYPES = (Conversation, ContentParts, MultimodalPair, MultimodalPrompt)


class ImageWorkerPool:
    """Worker threads that preprocess images before their request is admitted."""

    def __init__(self, multimodal: MultimodalProcessor | None, busy_stages: BusyStages | None = None) -> None:
        self.multimodal = multimodal  # None: the model takes no images
        self._executor = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="cenote-images")
        self._pid = get_process_id()  # threads do not survive a fork
        self._busy_stages = busy_stages or BusyStages()
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """The number of inputs that wait for a worker thread."""
        return self._executor._work_queue.qsize()

    def split(self, request: PoolRequest) -> list[SubRequest]:
        """Return the parts of a request whose images are preprocessed together; none if it has no images."""
        indices = self.find_image_indices(request)
        return split_request(request, len(indices), self.sub_request_size) if indices else []

    @property
    def sub_request_size(self) -> int:
        """The number of inputs that are preprocessed together."""
        return compute_sub_request_size(
            None if self.multimodal is None else self.multimodal.image_processor.max_image_bytes()
        )

    async def preprocess(self, request: PoolRequest) -> PoolRequest:
        """Return the request with its images preprocessed; inputs whose images are invalid become InvalidInput."""
        indices = self.find_image_indices(request)
        if not indices:
            return request
        with self._stopped_errors():
            futures = map(asyncio.wrap_future, self._submit(request, indices))
            return _replace_inputs(request, dict(zip(indices, await asyncio.gather(*futures), strict=True)))

    def start_preprocess(self, request: PoolRequest) -> asyncio.Future[PoolRequest]:
        """Preprocess a request in a task of the running event loop."""
        task = asyncio.ensure_future(self.preprocess(request))
        # marks an exception as retrieved: the caller may fail before it awaits the task
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return task

    def start_preprocess_sync(self, request: PoolRequest) -> ImageJob:
        """Preprocess a request for a synchronous caller."""
        indices = self.find_image_indices(request)
        with self._stopped_errors():
            return ImageJob(self, request, indices, self._submit(request, indices) if indices else [])

    async def preprocess_input(self, item: Input, mm_processor_kwargs: Mapping[str, Any]) -> Input:
        """Preprocess the images of a single input."""
        request = PoolRequest(task="embed", inputs=[item], mm_processor_kwargs=mm_processor_kwargs)
        return (await self.preprocess(request)).inputs[0]

    def _submit(self, request: PoolRequest, indices: Sequence[int]) -> list[Future[Input]]:
        """Queue inputs for the worker threads; an image that several inputs contain is preprocessed once."""
        assert self.multimodal is not None, "only multimodal models have inputs with images"
        multimodal = replace(self.multimodal, image_cache={})
        preprocess = partial(_preprocess_or_reject, self._busy_stages, multimodal, request.mm_processor_kwargs)
        return [self._executor.submit(preprocess, request.inputs[index]) for index in indices]

    @contextmanager
    def _stopped_errors(self) -> Iterator[None]:
        """Convert errors of the closed thread pool to EngineStopped; cancellation by the caller stays what it is."""
        try:
            yield
        except (CancelledError, asyncio.CancelledError, RuntimeError) as error:
            if not self._is_closed or (isinstance(error, asyncio.CancelledError) and _is_task_cancelled()):
                raise
            raise EngineStopped("the engine was stopped before the images were preprocessed") from None

    def close(self) -> None:
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def find_image_indices(self, request: PoolRequest) -> list[int]:
        """Return the indices of the inputs with images; none in a forked process, where the engine raises."""
        if self.multimodal is None or get_process_id() != self._pid:
            return []
        return [
            index
            for index, item in enumerate(request.inputs)
            if isinstance(item, MULTIMODAL_TYPES) and has_images(item)
        ]


@dataclass(frozen=True, slots=True)
class ImageJob:
    """A request whose images are being preprocessed; awaiting it blocks the thread, for synchronous callers."""

    pool: ImageWorkerPool
    request: PoolRequest
    indices: Sequence[int]
    futures: Sequence[Future[Input]]

    def wait(self) -> PoolRequest:
        if not self.futures:
            return self.request
        try:
            with self.pool._stopped_errors():
                items = [future.result() for future in self.futures]
        finally:
            self.cancel()
        return _replace_inputs(self.request, dict(zip(self.indices, items, strict=True)))

    def __await__(self) -> Generator[Any, Any, PoolRequest]:
        return self.wait()
        yield  # makes this function a generator

    def cancel(self) -> None:
        """Drop the inputs that no thread has started."""
        for future in self.futures:
            future.cancel()


def _preprocess_or_reject(
    busy_stages: BusyStages, multimodal: MultimodalProcessor, mm_processor_kwargs: Mapping[str, Any], item: Input
) -> Input:
    try:
        with busy_stages.track("image preprocessing"):
            return multimodal.process(item, mm_processor_kwargs)
    except PoolingError as error:
        return InvalidInput(error)
    except Exception as error:  # of Pillow, numpy or torch: it must not fail the other inputs
        logger.exception("image preprocessing failed")
        return InvalidInput(make_internal_error("image preprocessing failed for this input", error))


def _is_task_cancelled() -> bool:
    """Return whether cancellation of the running task was requested."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _replace_inputs(request: PoolRequest, items: Mapping[int, Input]) -> PoolRequest:
    return request.replace(inputs=[items.get(index, item) for index, item in enumerate(request.inputs)])

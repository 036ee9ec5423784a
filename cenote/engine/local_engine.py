"""LocalEngine: the methods for callers in the process of the engine, asynchronous and blocking, around `submit`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from cenote.engine.engine_executors import EngineExecutors
from cenote.engine.local_pending import LocalPending, OnProgress
from cenote.engine.pending import PoolResults, to_pool_results
from cenote.engine.preprocessing.image_workers import ImageWorkerPool
from cenote.engine.preprocessing.sub_requests import SubRequest, run_sub_requests
from cenote.engine.result_rows import GroupResult
from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.engine.tasks.io_processor import IOProcessorRunner
from cenote.engine.tasks.text_tasks import TextTasks
from cenote.engine.text_engine import TextEngine
from cenote.errors import PoolingError, Unsupported
from cenote.kernels.default_device import ignore_default_device
from cenote.plugins.io_processor import NO_PLUGIN_MESSAGE
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest
from cenote.protocol.results import EntityResult, IOProcessorResult
from cenote.scoring.scorer import ScoreResults
from cenote.utils.async_utils import run_coroutine_sync, run_inline
from cenote.utils.busy_stages import BusyStages

T = TypeVar("T")


class LocalEngine(TextEngine):
    """An engine whose results are tensors of this process."""

    tasks: TextTasks
    image_workers: ImageWorkerPool
    busy_stages: BusyStages
    executors: EngineExecutors
    io_processor: IOProcessorRunner | None

    @abstractmethod
    def submit(self, request: PoolRequest, *, caller_waits: bool = False) -> LocalPending: ...

    async def get_text_parts(self, deadline_at: float, num_chars: int) -> LocalEngine:
        return self

    async def pool(self, request: PoolRequest) -> PoolResults:
        """Return results in the order of the inputs; cancelling the call aborts what has not run."""
        return await self._pool_in_parts(request, self.image_workers, self._pool_ready)

    async def _pool_ready(self, request: PoolRequest) -> PoolResults:
        state = self.submit(request)
        await state.future.wait()
        return state.get_results()

    def pool_sync(self, request: PoolRequest, on_progress: OnProgress | None = None) -> PoolResults:
        """Block until all results are there; Ctrl-C aborts what has not run."""
        convert = partial(to_pool_results, extra_tasks=request.extra_tasks)
        return self.pool_as(request, lambda _: convert, on_progress)

    @ignore_default_device
    def pool_as(
        self,
        request: PoolRequest,
        make_converter: Callable[[int], Callable[[GroupResult], Sequence[T]]],
        on_progress: OnProgress | None = None,
    ) -> list[T | PoolingError]:
        """As `pool_sync`, with results converted to objects of the caller while others are still computed.

        `make_converter` is called with the number of inputs of the request, or of each of its sub-requests.
        """
        if not (sub_requests := self.image_workers.split(request)):
            state = self.submit(request, caller_waits=True)
            return state.collect(make_converter(state.num_inputs), on_progress)

        async def pool(sub_request: SubRequest, ready: PoolRequest) -> list[T | PoolingError]:
            state = self.submit(ready)
            return state.collect(make_converter(state.num_inputs), on_progress)

        start_preprocess = self.image_workers.start_preprocess_sync
        return run_coroutine_sync(run_sub_requests(sub_requests, start_preprocess, pool, request.timing))

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        if self.io_processor is None:
            raise Unsupported(NO_PLUGIN_MESSAGE)
        processed = IOProcessorResult()

        async def pool(part: PoolRequest) -> PoolResults:
            results = await self.pool(part.replace(deadline_at=request.deadline_at))
            processed.add_usage(results)
            request.timing.add_parallel(part.timing)
            return results

        processed.data = await self.io_processor.process(
            request.data,
            pool,
            request_id=request.request_id,
            scheduling=request.scheduling,
            tokenization=request.tokenization,
        )
        return processed

    @ignore_default_device
    def score_sync(self, request: ScoreRequest, on_progress: OnProgress | None = None) -> ScoreResults:
        return run_coroutine_sync(self.tasks.score(request, self._blocking_calls(on_progress)))

    @ignore_default_device
    def entities_sync(self, request: EntityRequest, on_progress: OnProgress | None = None) -> list[EntityResult]:
        return run_coroutine_sync(self.tasks.find_entities(request, self._blocking_calls(on_progress)))

    def _blocking_calls(self, on_progress: OnProgress | None) -> EngineCalls:
        async def pool(request: PoolRequest) -> PoolResults:
            return self.pool_sync(request, on_progress)

        return EngineCalls(pool, run_inline)

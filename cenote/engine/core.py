"""EngineCore: run tokenized inputs on the device; it knows neither texts nor who waits for their results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from cenote.config.engine import EngineConfig
from cenote.engine.adapter_manager import AdapterManager
from cenote.engine.dedup import InflightDedup
from cenote.engine.engine_loop import EngineLoop
from cenote.engine.engine_metrics import EngineMetrics
from cenote.engine.execution.executor import Executor
from cenote.engine.execution.token_budget import compute_token_budget
from cenote.engine.result_cache_factory import make_result_cache
from cenote.engine.scheduler import Scheduler
from cenote.engine.tokenized_batch import TokenizedBatch
from cenote.engine.watchdog import Watchdog
from cenote.errors import BadRequest, PoolingError
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.loading.loaded_model import LoadedModel

# device time of the bulk part of a batch while there is interactive traffic, on a CPU and on a GPU; on a GPU a batch
# waits behind the one that runs, so that a query that has just missed it waits for two
BULK_BATCH_S, ASYNC_BULK_BATCH_S = 0.06, 0.01
# how long `close` waits for the running batch
THREAD_JOIN_TIMEOUT_S = 5.0


class EngineCore:
    """Batches of one model go in; their results and errors go to their sinks."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        executor: Executor,
        adapters: AdapterManager,
        metrics: EngineMetrics,
        *,
        vocab_size: int,
        min_tokens: int,
        on_exit: Callable[[BaseException | None], None],
    ) -> None:
        """`on_exit` is called by a thread that ends, with the exception if it crashed."""
        self.max_model_len = model.description.max_length.value
        self.vocab_size = vocab_size
        self.min_tokens = min_tokens  # of an input
        self.adapters = adapters
        self.metrics = metrics
        self.on_exit = on_exit
        self.token_budget = config.max_num_batched_tokens or compute_token_budget(
            model.backbone, model.description.device.value
        )
        scheduler = Scheduler(
            self.token_budget,
            config.max_num_seqs,
            by_priority=config.scheduling_policy == "priority",
            mix_lanes=executor.is_async,
            bulk_batch_s=ASYNC_BULK_BATCH_S if executor.is_async else BULK_BATCH_S,
            bulk_max_wait_s=config.bulk_max_wait_s,
        )
        self.loop = EngineLoop(scheduler, executor, metrics, on_exit)
        self.watchdog = Watchdog(lambda: self.loop.step_started_at, config.step_timeout_s, on_exit)
        self.result_cache = make_result_cache(model.description, config, metrics.registry)
        self.dedup = InflightDedup(self.result_cache, adapters.is_builtin, adapters.get_generation)
        self.ranks = model.ranks
        self.dead_error: PoolingError | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        self.loop.thread.start()
        self.watchdog.thread.start()
        if self.ranks is not None:
            self.ranks.watch(self.on_exit)

    def check(self, inputs: TokenizedInputs) -> None:
        """Raise if arrays are not valid for the model: the device would read outside of its tables."""
        lengths, ids, least = inputs.lengths, inputs.token_ids, self.min_tokens
        shortest, longest = (len(ids), len(ids)) if len(lengths) == 1 else (lengths.min(), lengths.max())
        if longest > self.max_model_len and inputs.images is not None:  # a tower sets the length of an image
            longest = lengths[[images is None for images in inputs.images]].max(initial=0)
        if shortest < least or longest > self.max_model_len:
            raise BadRequest(f"each input must have between {least} and {self.max_model_len} tokens")
        if ids.view(np.uint32).max(initial=0) >= self.vocab_size:  # negative ids are the largest as unsigned numbers
            raise BadRequest(f"token ids must be between 0 and {self.vocab_size - 1}")

    def submit(self, batch: TokenizedBatch) -> None:
        """Queue a batch whose inputs have been checked; its sink gets the results."""
        if (adapter := batch.options.adapter) is not None:
            self.adapters.resolve(adapter, 1)  # it may have been unloaded since the options were resolved
        try:
            self.admit(partial(self.metrics.on_admit_batch, batch))
        except PoolingError as error:
            self.metrics.on_refused(error, batch.num_requests)
            raise
        if (group := self.dedup.add(batch)) is not None:
            self.loop.submit([group])

    def admit(self, count: Callable[[], None]) -> None:
        """Call `count`, which counts something as in flight, unless the core has stopped.

        The lock is held meanwhile: `stop` fails what is in flight by then.
        """
        with self._lock:
            if self.dead_error is not None:
                raise self.dead_error.with_traceback(None)  # raising it would add to its traceback at every call
            count()

    @property
    def is_running(self) -> bool:
        """Whether a thread is alive; after `stop`, one may be while its batch runs."""
        return self.loop.thread.is_alive() or self.watchdog.thread.is_alive()

    def stop(self, error: PoolingError) -> bool:
        """Fail all that is in flight and all that follows; return False if that was done before."""
        with self._lock:
            if self.dead_error is not None:
                return False
            self.dead_error = error
            in_flight = self.metrics.requests_in_flight()
        self.loop.stop()
        self.watchdog.stop()
        for state in in_flight:
            state.fail_all(error)
        return True

    def close(self) -> None:
        """Wait for the threads: one that is inside torch when the interpreter exits crashes the process."""
        for worker in (self.loop, self.watchdog):
            join_thread(worker.thread)
        self.loop.wait_for_callers(THREAD_JOIN_TIMEOUT_S)
        if self.ranks is not None:
            self.ranks.close()
        if self.result_cache is not None:
            self.result_cache.close()


def join_thread(thread: threading.Thread) -> None:
    """Wait for a thread to end, for some time, unless it is this one."""
    if thread is not threading.current_thread():
        thread.join(timeout=THREAD_JOIN_TIMEOUT_S)

"""RowPool: actors that compute slices of rows, whose results come back in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from cenote.config.ray import RayConfig
from cenote.errors import BadRequest, EngineStopped, PoolingError
from cenote.files.result_slice import ResultSchema, ResultSlice, collect_results
from cenote.files.sources import AdaptiveSlices, InputRow, count_chars
from cenote.ray.imports import connect
from cenote.ray.row_task import RowTask
from cenote.ray.stage import load_llm

SLICES_PER_ACTOR = 2  # one is computed, one waits
POLL_INTERVAL_S = 1.0


class RowActor:
    """A loaded model in an actor."""

    def __init__(
        self, row_task: RowTask, schema: ResultSchema, engine_options: Mapping[str, Any], threads: int | None
    ) -> None:
        self.row_task, self.schema = row_task, schema
        self.llm = load_llm(engine_options, threads)
        self.labels = self.llm.labels if schema.has_labels else None

    def run(self, rows: list[InputRow]) -> tuple[ResultSlice, float]:
        """Return the results, their rows without texts, and the seconds that they took."""
        started_at = time.monotonic()
        results = self.row_task.run(self.llm, [row.texts for row in rows if row.error is None])
        result_slice = collect_results(rows, results, self.schema, self.labels)  # type: ignore[arg-type]
        result_slice.rows = [replace(row, texts=(), id=None) for row in rows]
        return result_slice, time.monotonic() - started_at


class Slice(NamedTuple):
    number: int
    rows: list[InputRow]
    actor: Any


class RowPool:
    def __init__(
        self,
        config: RayConfig,
        row_task: RowTask,
        schema: ResultSchema,
        engine_options: Mapping[str, Any],
    ) -> None:
        """Start the actors; those for which the cluster has no place yet join when it has."""
        self.ray = connect(config.address)
        low, high = replica_range(self.ray, config)
        make_actor = self.ray.remote(RowActor).options(
            num_cpus=config.num_cpus, num_gpus=config.num_gpus, max_restarts=-1, max_task_retries=-1
        )
        threads = None if config.num_gpus else config.threads
        self.actors = [make_actor.remote(row_task, schema, dict(engine_options), threads) for _ in range(high)]
        self._starting = {actor.__ray_ready__.remote(): actor for actor in self.actors}
        self._load: dict[Any, int] = {}  # slices of each actor that has started
        self._wait_for_start(low)

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        self.actors = []

    def map(
        self, rows: Iterator[InputRow], max_rows: int, check: Callable[[], None] = lambda: None
    ) -> Iterator[ResultSlice]:
        """Yield the results in the order of the rows; `check` is called between two steps and may raise."""
        slices = AdaptiveSlices(rows, max_rows)
        running: dict[Any, Slice] = {}
        done: dict[int, ResultSlice] = {}
        num_taken = num_yielded = 0
        is_exhausted = False
        while True:
            self._add_started(0.0)
            # the reader stays ahead of a slow slice by a bounded number of results
            while not is_exhausted and num_taken - num_yielded < 2 * SLICES_PER_ACTOR * len(self._load):
                actor = min(self._load, key=self._load.__getitem__)
                if self._load[actor] >= SLICES_PER_ACTOR:
                    break
                taken = slices.take()
                if not taken:
                    is_exhausted = True
                    break
                running[actor.run.remote(taken)] = Slice(num_taken, taken, actor)
                self._load[actor] += 1
                num_taken += 1
            if not running:
                return
            ready, _ = self.ray.wait(list(running), timeout=POLL_INTERVAL_S)
            for reference in ready:
                finished = running.pop(reference)
                self._load[finished.actor] -= 1
                results, seconds = self._get(reference)
                slices.adapt_size(sum(map(count_chars, finished.rows)), seconds)
                for row, answered in zip(finished.rows, results.rows, strict=True):
                    row.error = answered.error
                results.rows = finished.rows
                done[finished.number] = results
            while num_yielded in done:
                yield done.pop(num_yielded)
                num_yielded += 1
            check()

    def _get(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise as_pooling_error(error) from None
        except self.ray.exceptions.RayActorError as error:
            raise EngineStopped(f"an actor cannot be restarted: {error}") from None

    def _wait_for_start(self, num_actors: int) -> None:
        while len(self._load) < num_actors:
            self._add_started(POLL_INTERVAL_S)

    def _add_started(self, timeout_s: float) -> None:
        if not self._starting:
            return
        ready, _ = self.ray.wait(list(self._starting), timeout=timeout_s)
        for reference in ready:
            actor = self._starting.pop(reference)
            self._get_started(reference)
            self._load[actor] = 0

    def _get_started(self, reference: Any) -> None:
        try:
            self.ray.get(reference)
        except self.ray.exceptions.RayActorError as error:
            cause = getattr(error, "cause", None) or error.__cause__
            raise as_pooling_error(cause if isinstance(cause, Exception) else error) from None


def replica_range(ray: Any, config: RayConfig) -> tuple[int, int]:
    """Return the smallest and the largest number of actors of a job on files."""
    low = 1 if config.min_replicas is None else max(1, config.min_replicas)
    if config.max_replicas is not None:
        return low, config.max_replicas
    resources = ray.cluster_resources()
    places = [resources.get("CPU", 0) // config.num_cpus] if config.num_cpus else []
    places += [resources.get("GPU", 0) // config.num_gpus] if config.num_gpus else []
    return low, max(low, int(min(places, default=low)))


def as_pooling_error(error: Exception) -> PoolingError:
    """Return the error that an actor raised, without Ray's traceback."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, PoolingError):
        return cause
    if isinstance(error, PoolingError):
        return error
    lines = [line for line in str(error).splitlines() if line.strip()]
    return BadRequest(f"an actor failed: {lines[-1].strip() if lines else type(error).__name__}")

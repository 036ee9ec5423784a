"""RowPool: actors that compute slices of rows, whose results come back in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cenote.config.ray import RayConfig
from cenote.errors import BadRequest, EngineStopped, PoolingError
from cenote.files.result_slice import ResultSchema, ResultSlice, collect_results
from cenote.files.sources import AdaptiveSlices, InputRow, count_chars
from cenote.ray.imports import connect
from cenote.ray.row_task import RowTask
from cenote.ray.stage import load_llm

SLICES_PER_ACTOR = 2  # one is computed, one waits
POLL_INTERVAL_S = 1.0
MAX_ATTEMPTS = 4  # of a slice whose actors die, and starts of an actor in a row


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


@dataclass(slots=True)
class Slice:
    number: int
    rows: list[InputRow]
    actor: Any = None
    num_attempts: int = 0


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
        # not restarted by Ray: a slice would wait for the restart also where the cluster has no place left for it
        make_actor = self.ray.remote(RowActor).options(num_cpus=config.num_cpus, num_gpus=config.num_gpus)
        threads = None if config.num_gpus else config.threads
        self._make_actor: Callable[[], Any] = lambda: make_actor.remote(row_task, schema, dict(engine_options), threads)
        self._starting: dict[Any, Any] = {}
        self._num_failed_starts = 0  # in a row
        self._load: dict[Any, int] = {}  # slices of each actor that has started
        for _ in range(high):
            self._start_actor()
        while len(self._load) < low:
            self._add_started(POLL_INTERVAL_S)

    def close(self) -> None:
        for actor in (*self._starting.values(), *self._load):
            self.ray.kill(actor)
        self._starting, self._load = {}, {}

    def map(
        self, rows: Iterator[InputRow], max_rows: int, check: Callable[[], None] = lambda: None
    ) -> Iterator[ResultSlice]:
        """Yield the results in the order of the rows; `check` is called between two steps and may raise."""
        slices = AdaptiveSlices(rows, max_rows)
        running: dict[Any, Slice] = {}
        lost: deque[Slice] = deque()  # of actors that have died
        done: dict[int, ResultSlice] = {}
        num_taken = num_yielded = 0
        is_exhausted = False
        while True:
            self._add_started(0.0)
            while (actor := self._find_free_actor()) is not None:
                if lost:
                    some = lost.popleft()
                # the reader stays ahead of a slow slice by a bounded number of results
                elif is_exhausted or num_taken - num_yielded >= 2 * SLICES_PER_ACTOR * len(self._load):
                    break
                elif taken := slices.take():
                    some = Slice(num_taken, taken)
                    num_taken += 1
                else:
                    is_exhausted = True
                    break
                some.actor = actor
                running[actor.run.remote(some.rows)] = some
                self._load[actor] += 1
            if is_exhausted and not running and not lost:
                return
            ready, _ = self.ray.wait([*running, *self._starting], timeout=POLL_INTERVAL_S)
            for reference in ready:
                if reference not in running:
                    continue
                finished = running.pop(reference)
                answer = self._get(reference, finished)
                if answer is None:
                    lost.append(finished)
                    continue
                results, seconds = answer
                slices.adapt_size(sum(map(count_chars, finished.rows)), seconds)
                for row, answered in zip(finished.rows, results.rows, strict=True):
                    row.error = answered.error
                results.rows = finished.rows
                done[finished.number] = results
            while num_yielded in done:
                yield done.pop(num_yielded)
                num_yielded += 1
            check()

    def _find_free_actor(self) -> Any:
        actor = min(self._load, key=self._load.__getitem__, default=None)
        return None if actor is None or self._load[actor] >= SLICES_PER_ACTOR else actor

    def _get(self, reference: Any, some: Slice) -> tuple[ResultSlice, float] | None:
        """Return what the actor returned, or None if it has died: another one gets the slice."""
        try:
            answer: tuple[ResultSlice, float] = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise as_pooling_error(error) from None
        except self.ray.exceptions.RayActorError as error:
            some.num_attempts += 1
            if some.num_attempts == MAX_ATTEMPTS:
                first, last = some.rows[0].index, some.rows[-1].index
                raise EngineStopped(f"{MAX_ATTEMPTS} actors have died with rows {first} to {last}: {error}") from None
            if self._load.pop(some.actor, None) is not None:  # not for its second slice
                with suppress(self.ray.exceptions.RayError):
                    self.ray.kill(some.actor)  # it may only be unreachable
                self._start_actor()
            return None
        self._load[some.actor] -= 1
        return answer

    def _start_actor(self) -> None:
        actor = self._make_actor()
        self._starting[actor.__ray_ready__.remote()] = actor

    def _add_started(self, timeout_s: float) -> None:
        if not self._starting:
            return
        ready, _ = self.ray.wait(list(self._starting), timeout=timeout_s)
        for reference in ready:
            actor = self._starting.pop(reference)
            try:
                self.ray.get(reference)
            except self.ray.exceptions.RayActorError as error:
                self._num_failed_starts += 1
                if error.actor_init_failed or self._num_failed_starts == MAX_ATTEMPTS:
                    cause = getattr(error, "cause", None) or error.__cause__
                    raise as_pooling_error(cause if isinstance(cause, Exception) else error) from None
                self._start_actor()
                continue
            self._num_failed_starts = 0
            self._load[actor] = 0


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

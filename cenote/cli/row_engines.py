"""What computes the rows of a command: the engine of this process, or actors of a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from cenote.cli.engine_requests import get_chunk_size, load_llm, resolve_task, task_options
from cenote.cli.flags import engine_keywords
from cenote.cli.interrupts import InterruptHandler
from cenote.cli.terminal import RowProgress
from cenote.config.options import option_fields
from cenote.config.ray import RayConfig
from cenote.files.result_slice import ResultSchema, ResultSlice, collect_results
from cenote.files.sources import AdaptiveSlices, InputRow
from cenote.protocol.late_chunking import split_document
from cenote.protocol.scheduling import SchedulingParams
from cenote.ray.row_task import RowTask

BULK = SchedulingParams(lane="bulk")


def open_engine(args: argparse.Namespace, schema: ResultSchema) -> RowEngine:
    return (RayRowEngine if ray_config(args).is_ray else LocalRowEngine)(args, schema)


class LocalRowEngine:
    """Computes in this process; yields results in the order of the rows, as actors do."""

    def __init__(self, args: argparse.Namespace, schema: ResultSchema) -> None:
        self.llm = load_llm(args)
        self.schema = schema
        self.labels = self.llm.labels if schema.has_labels else None
        self.chunk_size = get_chunk_size(args)
        self.row_task = RowTask(resolve_task(args), task_options(args), BULK)
        if args.command == "entities":  # whose texts fail together: what is wrong for every text is reported once
            self.row_task.compute(self.llm, [("a",)])

    def run(
        self, rows: Iterator[InputRow], batch_rows: int, progress: RowProgress, interrupts: InterruptHandler
    ) -> Iterator[ResultSlice]:
        for some in AdaptiveSlices(rows, batch_rows):
            valid = [row for row in some if row.error is None]
            with interrupts.delay_interrupts():
                results = self._compute(valid, progress) if valid else []
                result_slice = collect_results(some, results, self.schema, self.labels)
            yield result_slice

    def _compute(self, rows: list[InputRow], progress: RowProgress) -> Sequence[Any]:
        texts: list[tuple[Any, ...]] = [row.texts for row in rows]
        if self.chunk_size is not None:
            texts = [(split_document(text, self.chunk_size),) for (text,) in texts]
        if self.row_task.task == "entities":
            return self.row_task.run(self.llm, texts)
        return self.row_task.compute(self.llm, texts, progress.on_progress)

    def close(self) -> None:
        self.llm.close()


class RayRowEngine:
    def __init__(self, args: argparse.Namespace, schema: ResultSchema) -> None:
        from cenote.ray.row_pool import RowPool

        row_task = RowTask(resolve_task(args), task_options(args))
        self.pool = RowPool(ray_config(args), row_task, schema, engine_keywords(args))

    def run(
        self, rows: Iterator[InputRow], batch_rows: int, progress: RowProgress, interrupts: InterruptHandler
    ) -> Iterator[ResultSlice]:
        return self.pool.map(rows, batch_rows, interrupts.raise_pending)

    def close(self) -> None:
        self.pool.close()


RowEngine: TypeAlias = LocalRowEngine | RayRowEngine


def ray_config(args: argparse.Namespace) -> RayConfig:
    names = {option.name for option in option_fields(RayConfig)}
    return RayConfig(**{name: value for name, value in vars(args).items() if name in names})

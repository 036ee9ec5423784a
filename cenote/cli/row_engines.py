"""What computes the rows of a command: the engine of this process, or actors of a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

from cenote.cli.engine_requests import (
    ProgressCallback,
    RowSender,
    load_llm,
    make_pooling_params,
    make_sender,
    resolve_task,
)
from cenote.cli.flags import engine_keywords
from cenote.cli.interrupts import InterruptHandler
from cenote.cli.terminal import RowProgress
from cenote.config.options import option_fields
from cenote.config.ray import RayConfig
from cenote.errors import PoolingError
from cenote.files.result_slice import ResultSchema, ResultSlice, collect_results
from cenote.files.sources import AdaptiveSlices, InputRow
from cenote.protocol.results import EntityResult

# arguments that are keyword arguments of the method of LLM under the same name
TASK_OPTIONS = (
    *("prompt", "prompt_name", "score_type", "instruction"),
    *("aggregation_strategy", "ignore_labels", "stride", "labels", "threshold"),
)


class RowEngine(Protocol):
    def run(
        self, rows: Iterator[InputRow], batch_rows: int, progress: RowProgress, interrupts: InterruptHandler
    ) -> Iterator[ResultSlice]:
        """Yield results in the order of the rows."""
        ...

    def close(self) -> None: ...


def open_engine(args: argparse.Namespace, schema: ResultSchema) -> RowEngine:
    return (RayRowEngine if ray_config(args).is_ray else LocalRowEngine)(args, schema)


class LocalRowEngine:
    def __init__(self, args: argparse.Namespace, schema: ResultSchema) -> None:
        self.llm = load_llm(args)
        self.schema = schema
        self.labels = self.llm.labels if schema.has_labels else None
        self.send = make_entity_sender(args, self.llm) if args.command == "entities" else make_sender(args, self.llm)

    def run(
        self, rows: Iterator[InputRow], batch_rows: int, progress: RowProgress, interrupts: InterruptHandler
    ) -> Iterator[ResultSlice]:
        for some in AdaptiveSlices(rows, batch_rows):
            valid = [row for row in some if row.error is None]
            with interrupts.delay_interrupts():
                results = self.send(valid, progress.on_progress) if valid else []
                result_slice = collect_results(some, results, self.schema, self.labels)
            yield result_slice

    def close(self) -> None:
        self.llm.close()


def make_entity_sender(args: argparse.Namespace, llm: Any) -> RowSender:
    """Return the function that finds the entities of rows; raise if the model or the options allow none."""
    from cenote.ray.row_task import RowTask

    row_task = RowTask("entities", task_options(args))
    (probe,) = row_task.run(llm, [("a",)])  # what is wrong for every text is reported once
    if isinstance(probe, PoolingError):
        raise probe

    def find(rows: Sequence[InputRow], on_progress: ProgressCallback) -> Sequence[EntityResult | PoolingError]:
        results = row_task.run(llm, [row.texts for row in rows])
        return cast("Sequence[EntityResult | PoolingError]", results)

    return find


class RayRowEngine:
    def __init__(self, args: argparse.Namespace, schema: ResultSchema) -> None:
        from cenote.ray.row_pool import RowPool
        from cenote.ray.row_task import RowTask

        row_task = RowTask(resolve_task(args), task_options(args))
        self.pool = RowPool(ray_config(args), row_task, schema, engine_keywords(args))

    def run(
        self, rows: Iterator[InputRow], batch_rows: int, progress: RowProgress, interrupts: InterruptHandler
    ) -> Iterator[ResultSlice]:
        return self.pool.map(rows, batch_rows, interrupts.raise_pending)

    def close(self) -> None:
        self.pool.close()


def ray_config(args: argparse.Namespace) -> RayConfig:
    names = {option.name for option in option_fields(RayConfig)}
    return RayConfig(**{name: value for name, value in vars(args).items() if name in names})


def task_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a command as keyword arguments of the method of LLM."""
    truncation = {name: getattr(args, name) for name in ("truncate_prompt_tokens", "truncation_side")}
    options = {
        "pooling_params": make_pooling_params(args),
        "tokenization_kwargs": {name: value for name, value in truncation.items() if value is not None} or None,
        **{name: getattr(args, name, None) for name in TASK_OPTIONS},
    }
    return {name: value for name, value in options.items() if value is not None}

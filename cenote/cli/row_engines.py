"""The model, the input and the task of the commands on texts, and what computes their rows: this process, or Ray."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from cenote.cli.flags import engine_keywords
from cenote.cli.interrupts import InterruptHandler
from cenote.cli.terminal import RowProgress
from cenote.config.options import option_fields
from cenote.config.ray import RayConfig
from cenote.files.columns import ColumnOptions
from cenote.files.result_slice import ResultSchema, ResultSlice, collect_results
from cenote.files.sources import STDIN, AdaptiveSlices, ArgumentSource, FileSource, InputRow, RowSource
from cenote.protocol.late_chunking import DEFAULT_CHUNK_SIZE, split_document
from cenote.protocol.params import PoolingParams
from cenote.protocol.scheduling import SchedulingParams
from cenote.ray.row_task import SCHEMAS, RowTask
from cenote.utils.argparse_utils import UsageError, option_errors

# arguments that are keyword arguments of the method of LLM under the same name
TASK_OPTIONS = (
    *("prompt", "prompt_name", "score_type", "instruction"),
    *("aggregation_strategy", "ignore_labels", "stride", "labels", "threshold"),
)
BULK = SchedulingParams(lane="bulk")


def load_llm(args: argparse.Namespace) -> Any:
    from cenote import LLM  # here: imports torch, which takes seconds

    with option_errors():
        return LLM(**engine_keywords(args))


def task_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a command as keyword arguments of the method of LLM."""
    truncation = {name: getattr(args, name) for name in ("truncate_prompt_tokens", "truncation_side")}
    options = {
        "pooling_params": make_pooling_params(args),
        "tokenization_kwargs": {name: value for name, value in truncation.items() if value is not None} or None,
        **{name: getattr(args, name, None) for name in TASK_OPTIONS},
    }
    return {name: value for name, value in options.items() if value is not None}


def make_pooling_params(args: argparse.Namespace) -> PoolingParams | None:
    params = {name: getattr(args, name, None) for name in ("use_activation", "dimensions")}
    params["late_chunking"] = getattr(args, "late_chunking", False) or None
    return PoolingParams(**params) if any(value is not None for value in params.values()) else None


def get_chunk_size(args: argparse.Namespace) -> int | None:
    """Return the characters per chunk of late chunking; None without it."""
    chunk_size: int | None = getattr(args, "chunk_size", None)
    if getattr(args, "late_chunking", False):
        return chunk_size or DEFAULT_CHUNK_SIZE
    if chunk_size is not None:
        raise UsageError(f"--chunk-size {chunk_size} is for --late-chunking; add that flag")
    return None


def resolve_task(args: argparse.Namespace) -> str:
    return str(args.task if args.command == "encode" else args.command)


def make_schema(args: argparse.Namespace) -> ResultSchema:
    has_ids = args.id_column is not None
    if args.command == "entities":
        return ResultSchema("entities", kind="entities", has_ids=has_ids)
    if (chunk_size := get_chunk_size(args)) is not None:
        return ResultSchema("embeddings", kind="tokens", has_ids=has_ids, chunk_size=chunk_size)
    schema = replace(SCHEMAS[resolve_task(args)], has_ids=has_ids)
    return replace(schema, name="data", has_labels=False) if args.command == "encode" else schema


def make_column_options(args: argparse.Namespace) -> ColumnOptions:
    if args.command != "score":
        return ColumnOptions((args.column,) if args.column else None, args.id_column)
    names = tuple(args.columns.split(",")) if args.columns else None
    if names is not None and len(names) != 2:
        raise UsageError(f"--columns {args.columns} has {len(names)} column names; expected 2: FIRST,SECOND")
    return ColumnOptions(names, args.id_column, is_pairs=True)


def argument_rows(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return the rows given as arguments: one per text, or the pair of texts of score."""
    if args.command != "score" or not args.texts:
        return [(text,) for text in args.texts]
    if len(args.texts) != 2:
        raise UsageError(f"score expects 2 texts, got {len(args.texts)}; rerank takes one query and many documents")
    return [tuple(args.texts)]


def make_source(
    texts: Sequence[tuple[str, ...]], path: str | None, column_options: ColumnOptions, format: str | None
) -> RowSource:
    """Return a source of the arguments, else of the file, else of standard input unless it is a terminal."""
    if texts and path is not None:
        raise UsageError(f"texts as arguments and --input {path} cannot be combined")
    if texts:
        return ArgumentSource(texts)
    if path is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no texts; pass them as arguments, with --input FILE, or through a pipe")
    source = FileSource(path or STDIN, column_options, format)
    if source.format == "parquet" and source.path == STDIN:
        raise UsageError("parquet cannot be read from standard input; use --input FILE")
    return source


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

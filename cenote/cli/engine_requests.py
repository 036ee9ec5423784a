"""Build the model, the input sources and the options of a task of the commands on texts from arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cenote.cli.flags import engine_keywords
from cenote.files.columns import ColumnOptions
from cenote.files.result_slice import ResultSchema
from cenote.files.sources import STDIN, ArgumentSource, FileSource, RowSource
from cenote.protocol.late_chunking import DEFAULT_CHUNK_SIZE
from cenote.protocol.params import PoolingParams
from cenote.ray.row_task import SCHEMAS
from cenote.utils.argparse_utils import UsageError, option_errors

# arguments that are keyword arguments of the method of LLM under the same name
TASK_OPTIONS = (
    *("prompt", "prompt_name", "score_type", "instruction"),
    *("aggregation_strategy", "ignore_labels", "stride", "labels", "threshold"),
)


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

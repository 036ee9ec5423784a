"""Build the model, input sources and engine requests of the commands on texts from arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from cenote.cli.flags import engine_keywords
from cenote.errors import PoolingError
from cenote.files.columns import ColumnOptions
from cenote.files.result_slice import ResultSchema
from cenote.files.sources import STDIN, ArgumentSource, FileSource, InputRow, RowSource
from cenote.protocol.late_chunking import DEFAULT_CHUNK_SIZE, split_document
from cenote.protocol.params import PoolingParams, Task, TokenizationParams
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import EntityResult, PoolResult, ScoreResult
from cenote.protocol.scheduling import SchedulingParams
from cenote.utils.argparse_utils import UsageError, option_errors

BULK = SchedulingParams(lane="bulk")
ProgressCallback: TypeAlias = "Callable[[Any], None] | None"  # called with the state of the engine's request
RowSender: TypeAlias = (
    "Callable[[Sequence[InputRow], ProgressCallback], Sequence[PoolResult | ScoreResult | EntityResult | PoolingError]]"
)


def load_llm(args: argparse.Namespace) -> Any:
    from cenote import LLM  # here: imports torch, which takes seconds

    with option_errors():
        return LLM(**engine_keywords(args))


def make_sender(args: argparse.Namespace, llm: Any) -> RowSender:
    """Return the function that sends rows to the engine; a row that fails has its error in the list of results."""
    params, tokenization = make_pooling_params(args), make_tokenization_params(args)
    if args.command == "score":

        def score(rows: Sequence[InputRow], on_progress: ProgressCallback) -> Sequence[ScoreResult | PoolingError]:
            queries, documents = [row.texts[0] for row in rows], [row.texts[1] for row in rows]
            request = ScoreRequest(
                queries=queries,
                documents=documents,
                score_type=args.score_type,
                instruction=args.instruction,
                params=params,
                tokenization=tokenization,
                scheduling=BULK,
                return_exceptions=True,
            )
            return cast("Sequence[ScoreResult | PoolingError]", llm.engine.score_sync(request))

        return score

    chunk_size = get_chunk_size(args)

    def pool(rows: Sequence[InputRow], on_progress: ProgressCallback) -> Sequence[PoolResult | PoolingError]:
        texts = [row.texts[0] for row in rows]
        request = PoolRequest(
            task=cast(Task, resolve_task(args)),
            inputs=texts if chunk_size is None else [split_document(text, chunk_size) for text in texts],
            params=params,
            tokenization=tokenization,
            prompt=args.prompt,
            prompt_name=args.prompt_name,
            scheduling=BULK,
            return_exceptions=True,
        )
        return cast("Sequence[PoolResult | PoolingError]", llm.engine.pool_sync(request, on_progress))

    return pool


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


def make_tokenization_params(args: argparse.Namespace) -> TokenizationParams:
    return TokenizationParams(truncate_prompt_tokens=args.truncate_prompt_tokens, truncation_side=args.truncation_side)


def resolve_task(args: argparse.Namespace) -> str:
    return str(args.task if args.command == "encode" else args.command)


def make_schema(args: argparse.Namespace) -> ResultSchema:
    has_ids = args.id_column is not None
    if args.command == "classify":
        return ResultSchema("probs", has_labels=True, has_ids=has_ids)
    if args.command == "entities":
        return ResultSchema("entities", kind="entities", has_ids=has_ids)
    if args.command == "score":
        return ResultSchema("score", kind="number", has_ids=has_ids)
    if args.command == "encode" and args.task == "sparse_embed":
        return ResultSchema("data", kind="sparse", has_ids=has_ids)
    if args.command == "encode":
        return ResultSchema("data", kind="tokens" if args.task.startswith("token") else "vector", has_ids=has_ids)
    if (chunk_size := get_chunk_size(args)) is not None:
        return ResultSchema("embeddings", kind="tokens", has_ids=has_ids, chunk_size=chunk_size)
    return ResultSchema("embedding", has_ids=has_ids)


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

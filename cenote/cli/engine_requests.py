"""Between the command line and the engine: the model, the request for some rows, the columns that hold them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from cenote.cli.flags import engine_keywords
from cenote.cli.parser import UsageError
from cenote.errors import PoolingError
from cenote.files.columns import ColumnOptions
from cenote.files.result_slice import ResultSchema
from cenote.files.sources import STDIN, ArgumentSource, FileSource, InputRow, RowSource
from cenote.protocol.params import PoolingParams, Task, TokenizationParams
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import PoolResult, ScoreResult

ProgressCallback: TypeAlias = "Callable[[Any], None] | None"  # called with the engine's count of what is done
RowSender: TypeAlias = (
    "Callable[[Sequence[InputRow], ProgressCallback], Sequence[PoolResult | ScoreResult | PoolingError]]"
)


def load_llm(args: argparse.Namespace) -> Any:
    from cenote import LLM  # torch comes with it, and seconds

    return LLM(**engine_keywords(args))


def make_sender(args: argparse.Namespace, llm: Any) -> RowSender:
    """The function that sends rows to the engine; a row that fails leaves its error in the list."""
    params, tokenization = make_pooling_params(args), make_tokenization_params(args)
    if args.command == "score":

        def score(rows: Sequence[InputRow], watch: ProgressCallback) -> Sequence[ScoreResult | PoolingError]:
            queries, documents = [row.texts[0] for row in rows], [row.texts[1] for row in rows]
            request = ScoreRequest(
                queries=queries,
                documents=documents,
                score_type=args.score_type,
                instruction=args.instruction,
                params=params,
                tokenization=tokenization,
                return_exceptions=True,
            )
            return cast("Sequence[ScoreResult | PoolingError]", llm.engine.score_sync(request))

        return score

    def pool(rows: Sequence[InputRow], watch: ProgressCallback) -> Sequence[PoolResult | PoolingError]:
        request = PoolRequest(
            task=resolve_task(args),
            inputs=[row.texts[0] for row in rows],
            params=params,
            tokenization=tokenization,
            prompt=args.prompt,
            prompt_name=args.prompt_name,
            return_exceptions=True,
        )
        return cast("Sequence[PoolResult | PoolingError]", llm.engine.pool_sync(request, watch))

    return pool


def make_pooling_params(args: argparse.Namespace) -> PoolingParams | None:
    given = {name: getattr(args, name, None) for name in ("use_activation", "dimensions")}
    return PoolingParams(**given) if any(value is not None for value in given.values()) else None


def make_tokenization_params(args: argparse.Namespace) -> TokenizationParams:
    return TokenizationParams(truncate_prompt_tokens=args.truncate_prompt_tokens, truncation_side=args.truncation_side)


def resolve_task(args: argparse.Namespace) -> Task:
    return cast(Task, args.task if args.command == "encode" else args.command)


def make_schema(args: argparse.Namespace) -> ResultSchema:
    has_ids = args.id_column is not None
    if args.command == "classify":
        return ResultSchema("probs", has_labels=True, has_ids=has_ids)
    if args.command == "score":
        return ResultSchema("score", kind="number", has_ids=has_ids)
    if args.command == "encode" and args.task == "sparse_embed":
        return ResultSchema("data", kind="sparse", has_ids=has_ids)
    if args.command == "encode":
        return ResultSchema("data", kind="tokens" if args.task.startswith("token") else "vector", has_ids=has_ids)
    return ResultSchema("embedding", has_ids=has_ids)


def make_column_options(args: argparse.Namespace) -> ColumnOptions:
    if args.command != "score":
        return ColumnOptions((args.column,) if args.column else None, args.id_column)
    names = tuple(args.columns.split(",")) if args.columns else None
    if names is not None and len(names) != 2:
        raise UsageError(f"--columns {args.columns} names {len(names)} columns; score compares 2, FIRST,SECOND")
    return ColumnOptions(names, args.id_column, is_pairs=True)


def argument_rows(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """The rows given as arguments: each text is one, but for score two texts are."""
    if args.command != "score" or not args.texts:
        return [(text,) for text in args.texts]
    if len(args.texts) != 2:
        raise UsageError(f"score compares 2 texts, got {len(args.texts)}; rerank takes one query and many documents")
    return [tuple(args.texts)]


def make_source(
    texts: Sequence[tuple[str, ...]], path: str | None, column_options: ColumnOptions, format: str | None
) -> RowSource:
    """Arguments if there are any, else the named file, else what is piped in; never a wait for somebody to type."""
    if texts and path is not None:
        raise UsageError(f"texts come as arguments or with --input {path}, not both")
    if texts:
        return ArgumentSource(texts)
    if path is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no texts; give some as arguments, with --input FILE, or through a pipe")
    source = FileSource(path or STDIN, column_options, format)
    if source.format == "parquet" and source.path == STDIN:
        raise UsageError("parquet cannot be read from standard input; --input FILE reads it")
    return source

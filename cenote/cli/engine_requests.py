"""Between the command line and the engine: the model, the request for some rows, the columns that hold them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from cenote.cli.flags import engine_keywords
from cenote.cli.parser import UsageError
from cenote.errors import PoolingError
from cenote.files.columns import Wanted
from cenote.files.result_slice import Layout
from cenote.files.sources import STDIN, Arguments, File, Row, Source
from cenote.protocol.requests import Pooled, PoolingParams, PoolRequest, Scored, ScoreRequest, Task, Tokenization

Watch: TypeAlias = "Callable[[Any], None] | None"  # called with the engine's count of what is done
Ask: TypeAlias = "Callable[[Sequence[Row], Watch], Sequence[Pooled | Scored | PoolingError]]"


def load(args: argparse.Namespace) -> Any:
    from cenote import LLM  # torch comes with it, and seconds

    return LLM(**engine_keywords(args))


def ask(args: argparse.Namespace, llm: Any) -> Ask:
    """The function that sends rows to the engine; a row that fails leaves its error in the list."""
    params, tokenization = params_of(args), tokenization_of(args)
    if args.command == "score":

        def score(rows: Sequence[Row], watch: Watch) -> Sequence[Scored | PoolingError]:
            queries, documents = [row.texts[0] for row in rows], [row.texts[1] for row in rows]
            request = ScoreRequest(
                queries=queries,
                documents=documents,
                score_type=args.score_type,
                instruction=args.instruction,
                params=params,
                tokenization=tokenization,
                keep_going=True,
            )
            return cast("Sequence[Scored | PoolingError]", llm.engine.score_sync(request))

        return score

    def pool(rows: Sequence[Row], watch: Watch) -> Sequence[Pooled | PoolingError]:
        request = PoolRequest(
            task=task_of(args),
            inputs=[row.texts[0] for row in rows],
            params=params,
            tokenization=tokenization,
            prompt=args.prompt,
            prompt_name=args.prompt_name,
            keep_going=True,
        )
        return cast("Sequence[Pooled | PoolingError]", llm.engine.pool_sync(request, watch))

    return pool


def params_of(args: argparse.Namespace) -> PoolingParams | None:
    given = {name: getattr(args, name, None) for name in ("use_activation", "dimensions")}
    return PoolingParams(**given) if any(value is not None for value in given.values()) else None


def tokenization_of(args: argparse.Namespace) -> Tokenization:
    return Tokenization(truncate_prompt_tokens=args.truncate_prompt_tokens, truncation_side=args.truncation_side)


def task_of(args: argparse.Namespace) -> Task:
    return cast(Task, args.task if args.command == "encode" else args.command)


def layout_of(args: argparse.Namespace) -> Layout:
    has_ids = args.id_column is not None
    if args.command == "classify":
        return Layout("probs", has_labels=True, has_ids=has_ids)
    if args.command == "score":
        return Layout("score", kind="number", has_ids=has_ids)
    if args.command == "encode" and args.task == "sparse_embed":
        return Layout("data", kind="sparse", has_ids=has_ids)
    if args.command == "encode":
        return Layout("data", kind="tokens" if args.task.startswith("token") else "vector", has_ids=has_ids)
    return Layout("embedding", has_ids=has_ids)


def wanted_of(args: argparse.Namespace) -> Wanted:
    if args.command != "score":
        return Wanted((args.column,) if args.column else None, args.id_column)
    names = tuple(args.columns.split(",")) if args.columns else None
    if names is not None and len(names) != 2:
        raise UsageError(f"--columns {args.columns} names {len(names)} columns; score compares 2, FIRST,SECOND")
    return Wanted(names, args.id_column, pairs=True)


def texts_of(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """The rows given as arguments: each text is one, but for score two texts are."""
    if args.command != "score" or not args.texts:
        return [(text,) for text in args.texts]
    if len(args.texts) != 2:
        raise UsageError(f"score compares 2 texts, got {len(args.texts)}; rerank takes one query and many documents")
    return [tuple(args.texts)]


def source_of(texts: Sequence[tuple[str, ...]], path: str | None, wanted: Wanted, kind: str | None) -> Source:
    """Arguments if there are any, else the named file, else what is piped in; never a wait for somebody to type."""
    if texts and path is not None:
        raise UsageError(f"texts come as arguments or with --input {path}, not both")
    if texts:
        return Arguments(texts)
    if path is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no texts; give some as arguments, with --input FILE, or through a pipe")
    source = File(path or STDIN, wanted, kind)
    if source.kind == "parquet" and source.path == STDIN:
        raise UsageError("parquet cannot be read from standard input; --input FILE reads it")
    return source

"""Table of workloads: task, text lengths and default number of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from cenote.bench.compare.engines import EMBED, EMBED_IMAGES, SCORE, TOKEN_CLASSIFY, TOKEN_EMBED
from cenote.bench.compare.images import IMAGE_SIZES, draw_images
from cenote.bench.workloads import TextWorkload, make_log_normal_workload
from cenote.errors import BadRequest

HTTP_WORKLOAD = "http"
QUERY_TOKENS = 12
QUICK_DIVISOR = 8  # times fewer texts
TEXTS_PER_REQUEST = 32


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One workload; `mean_length` None means the maximum length of the model."""

    name: str
    task: str
    summary: str
    num_texts: int
    mean_length: float | None
    sigma: float
    max_length: int = 512
    is_single_query: bool = False  # one input at a time, each timed
    is_over_http: bool = False
    is_default: bool = False
    unit: str = "tokens"  # unit of throughput


WORKLOADS = {
    kind.name: kind
    for kind in (
        WorkloadSpec("short", EMBED, "short texts, about 16 tokens", 2000, 16, 0.3, 40),
        WorkloadSpec(
            "mixed", EMBED, "texts of all lengths, about 50 tokens in the mean", 1000, 50, 0.8, 256, is_default=True
        ),
        WorkloadSpec("passages", EMBED, "passages, about 200 tokens", 256, 200, 0.25),
        WorkloadSpec("long", EMBED, "texts as long as the model reads", 96, None, 0.0),
        WorkloadSpec(
            "query",
            EMBED,
            "single short queries, one at a time",
            100,
            12,
            0.3,
            40,
            is_single_query=True,
            is_default=True,
        ),
        WorkloadSpec("token_embed", TOKEN_EMBED, "a vector for every token", 500, 50, 0.8, 256),
        WorkloadSpec(
            "rerank", SCORE, "one query and its passages, about 100 tokens", 100, 100, 0.4, 400, is_default=True
        ),
        WorkloadSpec(
            "ner", TOKEN_CLASSIFY, "a class for every token of sentences, about 30 tokens", 1000, 30, 0.5, 128
        ),
        WorkloadSpec("images", EMBED_IMAGES, "images of mixed sizes, already decoded", 96, None, 0.0, unit="images"),
        WorkloadSpec(
            HTTP_WORKLOAD, EMBED, "32 texts per request, base64, 8 connections", 2048, 50, 0.8, 256, is_over_http=True
        ),
    )
}


@dataclass(frozen=True, slots=True)
class PreparedWorkload:
    """A workload with its texts."""

    spec: WorkloadSpec
    inputs: Any  # as workers take them
    num_items: int
    num_tokens: int
    description: str


def select_workloads(names: Sequence[str] | None) -> list[WorkloadSpec]:
    """Return the named workloads in the order of the table; None selects the defaults."""
    if names is None:
        return [kind for kind in WORKLOADS.values() if kind.is_default]
    if "all" in names:
        return list(WORKLOADS.values())
    for name in names:
        if name not in WORKLOADS:
            raise BadRequest(f"unknown workload {name!r}; expected one of: {', '.join(WORKLOADS)}, all")
    return [kind for kind in WORKLOADS.values() if kind.name in names]


def resolve_num_texts(kind: WorkloadSpec, texts: int | None, *, quick: bool) -> int:
    if kind.task == SCORE:  # the number of passages per query is fixed
        return kind.num_texts
    return (
        texts
        if texts is not None and not kind.is_single_query
        else kind.num_texts // QUICK_DIVISOR
        if quick
        else kind.num_texts
    )


def prepare_image_workload(
    kind: WorkloadSpec, folder: Path, *, texts: int | None, quick: bool, seed: int
) -> PreparedWorkload:
    """Write the images of a workload to `folder`; all engines read the same files."""
    paths = draw_images(folder, resolve_num_texts(kind, texts, quick=quick), seed)
    sizes = ", ".join(f"{width} x {height}" for width, height in IMAGE_SIZES)
    return PreparedWorkload(kind, {"images": paths}, len(paths), 0, f"{len(paths)} images, cycling through {sizes}")


def prepare_workload(
    kind: WorkloadSpec, tokenizer: tokenizers.Tokenizer, *, max_tokens: int, texts: int | None, quick: bool, seed: int
) -> PreparedWorkload:
    """Generate the texts of a workload from the seed; all engines get the same texts."""
    count = resolve_num_texts(kind, texts, quick=quick)
    # slightly longer than the limit, so that truncation is compared too
    longest = min(kind.max_length, max_tokens) if kind.mean_length is not None else max_tokens + 8
    mean = kind.mean_length if kind.mean_length is not None else longest
    workload = make_log_normal_workload(tokenizer, count, mean=mean, sigma=kind.sigma, max_length=longest, seed=seed)
    workload = TextWorkload(workload.texts, [min(length, max_tokens) for length in workload.lengths])
    if kind.task != SCORE:
        return PreparedWorkload(kind, workload.texts, count, workload.num_tokens, workload.describe())
    query = make_log_normal_workload(tokenizer, 1, mean=QUERY_TOKENS, sigma=0, max_length=longest, seed=seed + 1)
    # the query is part of every pair, and the pair has one special token less than two texts
    tokens = sum(min(length + query.num_tokens - 1, max_tokens) for length in workload.lengths)
    inputs = {"query": query.texts[0], "documents": workload.texts}
    return PreparedWorkload(kind, inputs, count, tokens, f"1 query of {query.num_tokens} tokens; {workload.describe()}")

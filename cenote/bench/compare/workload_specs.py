"""The workloads by name: what is asked, how long the texts are, how many there are unless somebody says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from cenote.bench.compare.engines import EMBED, EMBED_IMAGES, SCORE, TOKEN_CLASSIFY, TOKEN_EMBED
from cenote.bench.compare.images import SIZES, draw_images
from cenote.bench.workloads import Workload, log_normal
from cenote.errors import BadRequest

HTTP = "http"
QUERY_TOKENS = 12
QUICK = 8  # times fewer texts
TEXTS_PER_REQUEST = 32


@dataclass(frozen=True, slots=True)
class Kind:
    """One workload; `mean` None is as long as the model reads."""

    name: str
    task: str
    summary: str
    count: int
    mean: float | None
    sigma: float
    longest: int = 512
    singly: bool = False  # one after the other, and the time of each
    over_http: bool = False
    by_default: bool = False
    unit: str = "tokens"  # what speed is counted in


KINDS = {
    kind.name: kind
    for kind in (
        Kind("short", EMBED, "short texts, about 16 tokens", 2000, 16, 0.3, 40),
        Kind("mixed", EMBED, "texts of all lengths, about 50 tokens in the mean", 1000, 50, 0.8, 256, by_default=True),
        Kind("passages", EMBED, "passages, about 200 tokens", 256, 200, 0.25),
        Kind("long", EMBED, "texts as long as the model reads", 96, None, 0.0),
        Kind("query", EMBED, "single short queries, one at a time", 100, 12, 0.3, 40, singly=True, by_default=True),
        Kind("token_embed", TOKEN_EMBED, "a vector for every token", 500, 50, 0.8, 256),
        Kind("rerank", SCORE, "one query and its passages, about 100 tokens", 100, 100, 0.4, 400, by_default=True),
        Kind("ner", TOKEN_CLASSIFY, "a class for every token of sentences, about 30 tokens", 1000, 30, 0.5, 128),
        Kind("images", EMBED_IMAGES, "images of mixed sizes, already decoded", 96, None, 0.0, unit="images"),
        Kind(HTTP, EMBED, "32 texts per request, base64, 8 connections", 2048, 50, 0.8, 256, over_http=True),
    )
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload with its texts."""

    kind: Kind
    inputs: Any  # as workers take them
    num_items: int
    num_tokens: int
    description: str


def kinds_called(names: Sequence[str] | None) -> list[Kind]:
    """In the order of the table, whatever the order asked for."""
    if names is None:
        return [kind for kind in KINDS.values() if kind.by_default]
    if "all" in names:
        return list(KINDS.values())
    for name in names:
        if name not in KINDS:
            raise BadRequest(f"no workload is called {name!r}; there are: {', '.join(KINDS)}, all")
    return [kind for kind in KINDS.values() if kind.name in names]


def count_of(kind: Kind, texts: int | None, *, quick: bool) -> int:
    if kind.task == SCORE:  # a query has a hundred passages however little time there is
        return kind.count
    return texts if texts is not None and not kind.singly else kind.count // QUICK if quick else kind.count


def prepared_images(kind: Kind, folder: Path, *, texts: int | None, quick: bool, seed: int) -> Prepared:
    """The same files for everybody, in a folder."""
    paths = draw_images(folder, count_of(kind, texts, quick=quick), seed)
    sizes = ", ".join(f"{width} x {height}" for width, height in SIZES)
    return Prepared(kind, {"images": paths}, len(paths), 0, f"{len(paths)} images of {sizes} in turns")


def prepared(
    kind: Kind, tokenizer: tokenizers.Tokenizer, *, max_tokens: int, texts: int | None, quick: bool, seed: int
) -> Prepared:
    """The same texts for everybody, from the seed."""
    count = count_of(kind, texts, quick=quick)
    # a little longer than the limit: that everybody cuts in the same place is part of what is compared
    longest = min(kind.longest, max_tokens) if kind.mean is not None else max_tokens + 8
    mean = kind.mean if kind.mean is not None else longest
    made = log_normal(tokenizer, count, mean=mean, sigma=kind.sigma, longest=longest, seed=seed)
    made = Workload(made.texts, [min(length, max_tokens) for length in made.lengths])
    if kind.task != SCORE:
        return Prepared(kind, made.texts, count, made.num_tokens, made.describe())
    query = log_normal(tokenizer, 1, mean=QUERY_TOKENS, sigma=0, longest=longest, seed=seed + 1)
    # the query is read again with every passage, and shares one of the special tokens
    tokens = sum(min(length + query.num_tokens - 1, max_tokens) for length in made.lengths)
    inputs = {"query": query.texts[0], "documents": made.texts}
    return Prepared(kind, inputs, count, tokens, f"1 query of {query.num_tokens} tokens; {made.describe()}")

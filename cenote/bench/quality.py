"""`cenote bench quality`: what a model is worth on a set with known answers, beside Sentence Transformers."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cenote.errors import BadRequest, LoadError
from cenote.llm import LLM

Matrix = npt.NDArray[np.float32]
Embed = Callable[[list[str]], Matrix]
Score = Callable[[str, list[str]], Matrix]
DEPTH = 10  # ranks that count
EXACT = {"dtype": "float32"}  # left to itself, the library runs in whatever type the weights are stored


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Queries, documents, and which of them belong together, in the form that BEIR's sets have."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, float]]


def read_retrieval(folder: Path, *, split: str = "test", max_queries: int | None = None) -> Retrieval:
    """corpus.jsonl, queries.<split>.jsonl or queries.jsonl, and qrels.<split>.tsv or qrels/<split>.tsv."""
    relevant: dict[str, dict[str, float]] = {}
    for row in _rows(_first(folder, f"qrels.{split}.tsv", f"qrels/{split}.tsv")):
        relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = float(row["score"])
    named = {entry["_id"]: entry["text"] for entry in _lines(_first(folder, f"queries.{split}.jsonl", "queries.jsonl"))}
    judged = [name for name in named if name in relevant][:max_queries]
    if not judged:
        raise BadRequest(f"{folder}: none of the {len(named):,} queries has a relevance judgement for split {split!r}")
    # the title is a document's first sentence, as the published figures have it
    documents = {
        entry["_id"]: f"{entry.get('title') or ''} {entry['text']}".strip()
        for entry in _lines(_first(folder, "corpus.jsonl"))
    }
    return Retrieval({name: named[name] for name in judged}, documents, relevant)


def read_pairs(file: Path, split: str = "test") -> tuple[list[str], list[str], list[float]]:
    """Two texts and how similar people find them, from columns sentence1, sentence2 and score."""
    rows = [row for row in _rows(file) if row.get("split", split) == split]
    if not rows:
        raise BadRequest(f"{file} has no rows of split {split!r}")
    if missing := [name for name in ("sentence1", "sentence2", "score") if not rows[0].get(name)]:
        columns = ", ".join(filter(None, rows[0]))
        raise BadRequest(f"{file} has no column {', '.join(missing)}; its columns, separated by tabs, are: {columns}")
    return (
        [row["sentence1"] for row in rows],
        [row["sentence2"] for row in rows],
        [float(row["score"]) for row in rows],
    )


def ndcg(ranked: list[str], relevant: Mapping[str, float], depth: int = DEPTH) -> float:
    """How near a ranking comes to the best one, with less said by every further rank."""
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    gains = np.array([relevant.get(name, 0.0) for name in ranked[:depth]])
    best = np.sort(np.array(list(relevant.values())))[::-1][:depth]
    ideal = float((best * discounts[: len(best)]).sum())
    return float((gains * discounts[: len(gains)]).sum()) / ideal if ideal else 0.0


def spearman(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """The correlation of ranks; equal values share theirs."""
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def rank_by_vectors(data: Retrieval, embed: Embed) -> dict[str, list[str]]:
    names = list(data.documents)
    scores = _unit(embed(list(data.queries.values()))) @ _unit(embed(list(data.documents.values()))).T
    best = np.argsort(-scores, axis=1, kind="stable")[:, : max(DEPTH, 100)]
    return {query: [names[row] for row in rows] for query, rows in zip(data.queries, best, strict=True)}


def rerank(data: Retrieval, ranked: Mapping[str, list[str]], score: Score, depth: int = DEPTH) -> dict[str, list[str]]:
    """The best so far, in the order of a model that reads both texts at once."""
    better = {}
    for query, names in ranked.items():
        values = score(data.queries[query], [data.documents[name] for name in names[:depth]])
        better[query] = [names[row] for row in np.argsort(-values, kind="stable")]
    return better


def mean_ndcg(data: Retrieval, ranked: Mapping[str, list[str]]) -> float:
    return float(np.mean([ndcg(names, data.relevant[query]) for query, names in ranked.items()]))


def similarity(first: list[str], second: list[str], gold: list[float], embed: Embed) -> float:
    cosines = (_unit(embed(first)) * _unit(embed(second))).sum(axis=1)
    return spearman(cosines, np.array(gold))


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, ours and theirs."""

    name: str
    ours: float
    theirs: float | None


def measure(
    llm: LLM,
    *,
    retrieval: Path | None,
    pairs: Path | None,
    first_stage: str | None,
    max_queries: int | None,
    beside: bool,
) -> list[Figure]:
    """Every figure that the sets at hand allow for this model."""
    description, figures = llm.engine.model.description, list[Figure]()
    folder, device = str(description.checkpoint.folder), str(description.device.value)
    if "embed" in llm.supported_tasks:
        engines = [our_embed(llm), *([their_embed(folder, device)] if beside else [])]
        if pairs is not None:
            first, second, gold = read_pairs(pairs)
            values = [similarity(first, second, gold, embed) for embed in engines]
            figures.append(_figure(f"Spearman, {len(gold)} pairs", values))
        if retrieval is not None:
            data = read_retrieval(retrieval, max_queries=max_queries)
            values = [mean_ndcg(data, rank_by_vectors(data, embed)) for embed in engines]
            figures.append(_figure(f"nDCG@{DEPTH}, {len(data.queries)} queries", values))
        return figures
    if retrieval is None:
        raise BadRequest("a reranker is measured on retrieval; give --retrieval FOLDER")
    data = read_retrieval(retrieval, max_queries=max_queries)
    with LLM(first_stage) as embedder:
        ranked = rank_by_vectors(data, our_embed(embedder))
    scorers = [our_score(llm), *([their_score(folder, device)] if beside else [])]
    values = [mean_ndcg(data, rerank(data, ranked, score)) for score in scorers]
    return [_figure(f"nDCG@{DEPTH}, {len(data.queries)} queries, the first {DEPTH} reranked", values)]


def _figure(name: str, values: list[float]) -> Figure:
    return Figure(name, values[0], values[1] if len(values) > 1 else None)


def our_embed(llm: LLM) -> Embed:
    def embed(texts: list[str]) -> Matrix:
        outputs = llm.embed(texts, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})
        return np.stack([output.outputs.data.numpy() for output in outputs])

    return embed


def our_score(llm: LLM) -> Score:
    def score(query: str, documents: list[str]) -> Matrix:
        outputs = llm.score(query, documents, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})
        return np.array([output.outputs.score for output in outputs], dtype=np.float32)

    return score


def their_embed(folder: str, device: str) -> Embed:
    model = _library().SentenceTransformer(folder, device=device, model_kwargs=EXACT)

    def embed(texts: list[str]) -> Matrix:
        vectors: Matrix = model.encode(texts, show_progress_bar=False, convert_to_numpy=True)
        return vectors

    return embed


def their_score(folder: str, device: str) -> Score:
    model = _library().CrossEncoder(folder, device=device, model_kwargs=EXACT)

    def score(query: str, documents: list[str]) -> Matrix:
        values: Matrix = model.predict([(query, text) for text in documents], show_progress_bar=False)
        return values

    return score


def _library() -> Any:
    try:
        import sentence_transformers
    except ImportError:
        raise LoadError("the comparison needs sentence-transformers: pip install sentence-transformers") from None
    return sentence_transformers


def _ranks(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    shared: npt.NDArray[np.float64] = (ends - (counts - 1) / 2)[group]
    return shared


def _unit(rows: Matrix) -> Matrix:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Matrix = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit


def _first(folder: Path, *names: str) -> Path:
    for name in names:
        for file in (folder / name, folder / f"{name}.gz"):
            if file.exists():
                return file
    raise BadRequest(f"{folder} has no {' or '.join(names)}, plain or with .gz")


def _text(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        yield from lines


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in _text(file) if line.strip())


def _rows(file: Path) -> Iterator[dict[str, str]]:
    return csv.DictReader(_text(file), delimiter="\t", quoting=csv.QUOTE_NONE)

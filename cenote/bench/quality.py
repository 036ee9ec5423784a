"""`cenote bench quality`: model quality on labelled data sets, compared with Sentence Transformers."""

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

FloatMatrix = npt.NDArray[np.float32]
EmbedFn = Callable[[list[str]], FloatMatrix]
ScoreFn = Callable[[str, list[str]], FloatMatrix]
SPLIT = "test"
NDCG_DEPTH = 10  # rank cutoff
FLOAT32_KWARGS = {"dtype": "float32"}  # the default is the dtype of the checkpoint


@dataclass(frozen=True, slots=True)
class RetrievalDataset:
    """Queries, documents and relevance judgements of a data set in BEIR format."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, float]]


def read_retrieval(folder: Path, *, max_queries: int | None = None) -> RetrievalDataset:
    """Read corpus.jsonl, queries.test.jsonl or queries.jsonl, and qrels.test.tsv or qrels/test.tsv."""
    relevant: dict[str, dict[str, float]] = {}
    for row in _iter_tsv(_find_file(folder, f"qrels.{SPLIT}.tsv", f"qrels/{SPLIT}.tsv")):
        relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = float(row["score"])
    named = {
        entry["_id"]: entry["text"]
        for entry in _iter_jsonl(_find_file(folder, f"queries.{SPLIT}.jsonl", "queries.jsonl"))
    }
    judged = [name for name in named if name in relevant][:max_queries]
    if not judged:
        raise BadRequest(f"{folder}: none of the {len(named):,} queries has a relevance judgement for split {SPLIT!r}")
    # title and text are joined, as for the published results
    documents = {
        entry["_id"]: f"{entry.get('title') or ''} {entry['text']}".strip()
        for entry in _iter_jsonl(_find_file(folder, "corpus.jsonl"))
    }
    return RetrievalDataset({name: named[name] for name in judged}, documents, relevant)


def read_pairs(file: Path) -> tuple[list[str], list[str], list[float]]:
    """Read text pairs and their gold similarity from columns sentence1, sentence2 and score."""
    rows = [row for row in _iter_tsv(file) if row.get("split", SPLIT) == SPLIT]
    if not rows:
        raise BadRequest(f"{file} has no rows of split {SPLIT!r}")
    if missing := [name for name in ("sentence1", "sentence2", "score") if not rows[0].get(name)]:
        columns = ", ".join(filter(None, rows[0]))
        raise BadRequest(f"{file} has no column {', '.join(missing)}; its columns, separated by tabs, are: {columns}")
    return (
        [row["sentence1"] for row in rows],
        [row["sentence2"] for row in rows],
        [float(row["score"]) for row in rows],
    )


def ndcg(ranked: list[str], relevant: Mapping[str, float], depth: int = NDCG_DEPTH) -> float:
    """Return the normalized discounted cumulative gain at rank `depth`."""
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    gains = np.array([relevant.get(name, 0.0) for name in ranked[:depth]])
    best = np.sort(np.array(list(relevant.values())))[::-1][:depth]
    ideal = float((best * discounts[: len(best)]).sum())
    return float((gains * discounts[: len(gains)]).sum()) / ideal if ideal else 0.0


def spearman(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """Return the Spearman rank correlation; ties get their mean rank."""
    return float(np.corrcoef(_rank_values(first), _rank_values(second))[0, 1])


def rank_by_vectors(data: RetrievalDataset, embed: EmbedFn) -> dict[str, list[str]]:
    names = list(data.documents)
    scores = (
        _normalize_rows(embed(list(data.queries.values()))) @ _normalize_rows(embed(list(data.documents.values()))).T
    )
    best = np.argsort(-scores, axis=1, kind="stable")[:, : max(NDCG_DEPTH, 100)]
    return {query: [names[row] for row in rows] for query, rows in zip(data.queries, best, strict=True)}


def rerank(
    data: RetrievalDataset, ranked: Mapping[str, list[str]], score: ScoreFn, depth: int = NDCG_DEPTH
) -> dict[str, list[str]]:
    """Reorder the first `depth` documents of each query by the scores of a cross-encoder."""
    reranked = {}
    for query, names in ranked.items():
        values = score(data.queries[query], [data.documents[name] for name in names[:depth]])
        reranked[query] = [names[row] for row in np.argsort(-values, kind="stable")]
    return reranked


def mean_ndcg(data: RetrievalDataset, ranked: Mapping[str, list[str]]) -> float:
    return float(np.mean([ndcg(names, data.relevant[query]) for query, names in ranked.items()]))


def similarity_correlation(first: list[str], second: list[str], gold: list[float], embed: EmbedFn) -> float:
    cosines = (_normalize_rows(embed(first)) * _normalize_rows(embed(second))).sum(axis=1)
    return spearman(cosines, np.array(gold))


@dataclass(frozen=True, slots=True)
class QualityResult:
    """One metric of Cenote and, if compared, of Sentence Transformers."""

    name: str
    cenote_value: float
    reference_value: float | None


def measure_quality(
    llm: LLM,
    *,
    retrieval: Path | None,
    pairs: Path | None,
    first_stage: str | None,
    max_queries: int | None,
    compare: bool,
) -> list[QualityResult]:
    """Every figure that the sets at hand allow for this model."""
    description, figures = llm.engine.model.description, list[QualityResult]()
    folder, device = str(description.checkpoint.folder), str(description.device.value)
    if "embed" in llm.supported_tasks:
        engines = [make_cenote_embed(llm), *([make_reference_embed(folder, device)] if compare else [])]
        if pairs is not None:
            first, second, gold = read_pairs(pairs)
            values = [similarity_correlation(first, second, gold, embed) for embed in engines]
            figures.append(_make_result(f"Spearman, {len(gold)} pairs of {pairs.name}", values))
        if retrieval is not None:
            data = read_retrieval(retrieval, max_queries=max_queries)
            values = [mean_ndcg(data, rank_by_vectors(data, embed)) for embed in engines]
            figures.append(_make_result(f"nDCG@{NDCG_DEPTH}, {len(data.queries)} queries of {retrieval.name}", values))
        return figures
    if retrieval is None:
        raise BadRequest("a reranker requires a retrieval data set; pass --retrieval FOLDER")
    data = read_retrieval(retrieval, max_queries=max_queries)
    with LLM(first_stage) as embedder:
        ranked = rank_by_vectors(data, make_cenote_embed(embedder))
    scorers = [make_cenote_score(llm), *([make_reference_score(folder, device)] if compare else [])]
    values = [mean_ndcg(data, rerank(data, ranked, score)) for score in scorers]
    name = f"nDCG@{NDCG_DEPTH}, {len(data.queries)} queries of {retrieval.name}, top {NDCG_DEPTH} reranked"
    return [_make_result(name, values)]


def _make_result(name: str, values: list[float]) -> QualityResult:
    return QualityResult(name, values[0], values[1] if len(values) > 1 else None)


def make_cenote_embed(llm: LLM) -> EmbedFn:
    def embed(texts: list[str]) -> FloatMatrix:
        outputs = llm.embed(texts, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})
        return np.stack([output.outputs.data.numpy() for output in outputs])

    return embed


def make_cenote_score(llm: LLM) -> ScoreFn:
    def score(query: str, documents: list[str]) -> FloatMatrix:
        outputs = llm.score(query, documents, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})
        return np.array([output.outputs.score for output in outputs], dtype=np.float32)

    return score


def make_reference_embed(folder: str, device: str) -> EmbedFn:
    model = _import_sentence_transformers().SentenceTransformer(folder, device=device, model_kwargs=FLOAT32_KWARGS)

    def embed(texts: list[str]) -> FloatMatrix:
        vectors: FloatMatrix = model.encode(texts, show_progress_bar=False, convert_to_numpy=True)
        return vectors

    return embed


def make_reference_score(folder: str, device: str) -> ScoreFn:
    model = _import_sentence_transformers().CrossEncoder(folder, device=device, model_kwargs=FLOAT32_KWARGS)

    def score(query: str, documents: list[str]) -> FloatMatrix:
        values: FloatMatrix = model.predict([(query, text) for text in documents], show_progress_bar=False)
        return values

    return score


def _import_sentence_transformers() -> Any:
    try:
        import sentence_transformers
    except ImportError:
        raise LoadError(
            "the comparison requires sentence-transformers: pip install sentence-transformers, or pass --alone"
        ) from None
    return sentence_transformers


def _rank_values(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    ranks: npt.NDArray[np.float64] = (ends - (counts - 1) / 2)[group]
    return ranks


def _normalize_rows(rows: FloatMatrix) -> FloatMatrix:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: FloatMatrix = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit


def _find_file(folder: Path, *names: str) -> Path:
    for name in names:
        for file in (folder / name, folder / f"{name}.gz"):
            if file.exists():
                return file
    raise BadRequest(f"{folder} has no {' or '.join(names)}, plain or with .gz")


def _iter_lines(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        yield from lines


def _iter_jsonl(file: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in _iter_lines(file) if line.strip())


def _iter_tsv(file: Path) -> Iterator[dict[str, str]]:
    return csv.DictReader(_iter_lines(file), delimiter="\t", quoting=csv.QUOTE_NONE)

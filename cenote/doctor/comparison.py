"""`cenote doctor --compare`: whether two servers return the same vectors and rankings, and why not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from cenote.doctor.answers import AnswerError, Vector
from cenote.doctor.client_request import ClientRequest, Kind
from cenote.doctor.client_requests import CLIENT_REQUESTS
from cenote.doctor.difference_causes import Embedder, find_cause
from cenote.doctor.ranking_checks import in_order
from cenote.doctor.server import Server, read_reply
from cenote.doctor.texts import COMPARED_TEXTS, DOCUMENTS, QUERY
from cenote.doctor.vector_checks import cosine
from cenote.errors import PoolingError
from cenote.utils.http_client import HttpClient

SAME_TAU = 0.95
TOP_K = 5


@dataclass
class Comparison:
    urls: tuple[str, str]
    cosine_min: float | None = None
    cosine_mean: float | None = None
    max_abs_difference: float | None = None
    norms: list[tuple[float, float]] = field(default_factory=list)  # smallest and largest of each server
    top_k_overlap: float | None = None
    kendall_tau: float | None = None
    rerank_max_abs_difference: float | None = None
    rerank_kendall_tau: float | None = None
    cause: str = ""
    worst_text: str = ""
    skipped: list[str] = field(default_factory=list)
    is_same: bool = True

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def to_text(self) -> str:
        lines = [f"{self.urls[0]} and {self.urls[1]}"]
        if self.cosine_min is not None:
            lines += [
                f"cosine              min {self.cosine_min:.6f}, mean {self.cosine_mean:.6f}",
                f"largest difference  {self.max_abs_difference:.2e}",
                "lengths             " + " and ".join(f"{low:.3f} to {high:.3f}" for low, high in self.norms),
            ]
        if self.top_k_overlap is not None:
            lines.append(
                f"search rankings     top-{TOP_K} overlap {self.top_k_overlap:.1%}, tau {self.kendall_tau:.4f}"
            )
        if self.rerank_kendall_tau is not None:
            difference = f"largest difference of scores {self.rerank_max_abs_difference:.2e}"
            lines.append(f"rerank              tau {self.rerank_kendall_tau:.4f}, {difference}")
        lines += [f"skipped             {line}" for line in self.skipped]
        if self.worst_text:
            lines.append(f"most different text {self.worst_text!r}")
        lines.append(f"{'same' if self.is_same else 'different'}: {self.cause}")
        return "\n".join(lines)


def compare(one: HttpClient, other: HttpClient, *, model: str | None, texts: Sequence[str] | None) -> Comparison:
    """Embed the texts at both servers, and rerank if both can."""
    servers = (Server.connect(one, model), Server.connect(other, model))
    result = Comparison((one.url, other.url))
    embedders = [find_request(server, "vectors") for server in servers]
    rerankers = [find_request(server, "scores") for server in servers]
    has_compared = False
    if embedders[0] and embedders[1]:
        pair = (Embedder(servers[0], embedders[0]), Embedder(servers[1], embedders[1]))
        compare_vectors(pair, texts or COMPARED_TEXTS, result)
        has_compared = True
    elif embedders[0] or embedders[1]:
        url, other_url = result.urls if embedders[0] else result.urls[::-1]
        result.cause = f"{url} returns embeddings, {other_url} does not; other models"
        result.is_same = False
    if rerankers[0] and rerankers[1]:
        compare_rerank(servers, (rerankers[0], rerankers[1]), result)
        has_compared = True
    if not has_compared:
        raise PoolingError(f"{one.url} and {other.url} have neither embeddings nor rerank in common")
    return result


def find_request(server: Server, kind: Kind) -> ClientRequest | None:
    """Return the first request of the table that the server answers."""
    for row in CLIENT_REQUESTS:
        if row.kind == kind and row.path != "/" and row.comparison == "equal":
            try:
                read_reply(row, server.send(row))
            except AnswerError:
                continue
            return row
    return None


def compare_vectors(embedders: tuple[Embedder, Embedder], texts: Sequence[str], result: Comparison) -> None:
    kept, first, second = embed_at_both(embedders, texts, result)
    if len(kept) < 2:
        raise PoolingError(f"both servers embed {len(kept)} of {len(texts)} texts; {'; '.join(result.skipped[:2])}")
    if len(first[0]) != len(second[0]):
        result.cause = f"dimensions: {len(first[0])} and {len(second[0])}; other models, or another output size"
        result.is_same = False
        return
    cosines = [cosine(a, b) for a, b in zip(first, second, strict=True)]
    result.cosine_min, result.cosine_mean = min(cosines), float(np.mean(cosines))
    result.max_abs_difference = max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))
    norms = [[float(np.linalg.norm(vector)) for vector in vectors] for vectors in (first, second)]
    result.norms = [(min(values), max(values)) for values in norms]
    result.top_k_overlap, result.kendall_tau = compare_rankings(first, second)
    difference = find_cause(embedders, kept, first, second, cosines)
    result.cause, result.is_same = difference.message, difference.is_same
    if not result.is_same:
        result.worst_text = kept[int(np.argmin(cosines))][:60]


def embed_at_both(
    embedders: tuple[Embedder, Embedder], texts: Sequence[str], result: Comparison
) -> tuple[list[str], list[Vector], list[Vector]]:
    """Embed each text in a request of its own; one that a server refuses is skipped."""
    kept, first, second = [], [], []
    for text in texts:
        try:
            pair = [embedder.embed(text) for embedder in embedders]
        except AnswerError as error:
            result.skipped.append(f"{text[:40]!r} ({len(text.split())} words): {error}"[:160])
            continue
        kept.append(text)
        first.append(pair[0])
        second.append(pair[1])
    return kept, first, second


def compare_rankings(first: Sequence[Vector], second: Sequence[Vector]) -> tuple[float, float]:
    """Search each text among the others; return the overlap of the best ones and Kendall's tau, as means."""
    overlaps, taus = [], []
    similarities = [normalize(vectors) @ normalize(vectors).T for vectors in (first, second)]
    for i in range(len(first)):
        rows = [np.delete(matrix[i], i) for matrix in similarities]
        k = min(TOP_K, len(rows[0]))
        best = [set(np.argsort(-row, kind="stable")[:k].tolist()) for row in rows]
        overlaps.append(len(best[0] & best[1]) / k)
        taus.append(kendall_tau(rows[0], rows[1]))
    return float(np.mean(overlaps)), float(np.mean(taus))


def normalize(vectors: Sequence[Vector]) -> NDArray[np.float64]:
    rows = np.stack(vectors)
    normalized: NDArray[np.float64] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return normalized


def kendall_tau(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the share of pairs in the same order minus that of pairs in opposite orders."""
    if len(one) < 2:
        return 1.0
    signs = [np.sign(values[:, None] - values[None, :]) for values in (one, other)]
    pairs = np.triu_indices(len(one), 1)
    return float((signs[0] * signs[1])[pairs].mean())


def compare_rerank(
    servers: tuple[Server, Server], requests: tuple[ClientRequest, ClientRequest], result: Comparison
) -> None:
    scores = [
        np.array(in_order(server.rank(request, QUERY, DOCUMENTS)))
        for server, request in zip(servers, requests, strict=True)
    ]
    result.rerank_kendall_tau = kendall_tau(scores[0], scores[1])
    result.rerank_max_abs_difference = float(np.abs(scores[0] - scores[1]).max())
    if result.rerank_kendall_tau < SAME_TAU:
        result.is_same = False
        result.cause = result.cause or "rankings differ: other models or templates"
    elif not result.cause:
        is_close = result.rerank_max_abs_difference <= 0.01 * max(1.0, float(np.ptp(scores[0])))
        result.cause = "scores are equal" if is_close else "the same order on another scale: raw or activated scores"

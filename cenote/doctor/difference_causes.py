"""Which common cause explains that two servers return different vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cenote.doctor.answers import AnswerError, Vector
from cenote.doctor.client_request import ClientRequest
from cenote.doctor.server import Server
from cenote.doctor.truncation_checks import ENDINGS, SAME_VECTOR
from cenote.doctor.vector_checks import cosine

SAME_COSINE = 0.99999
PRECISION_COSINE = 0.995  # bfloat16 reaches 0.9995, int8 about 0.995
MATCH_COSINE = 0.998
OTHER_MODEL_COSINE = 0.2
PROBES = 3  # short texts that prompts and pooling methods are tried with
PROMPTS = (
    "query: ",
    "passage: ",
    "search_query: ",
    "search_document: ",
    "classification: ",
    "clustering: ",
    "Represent this sentence for searching relevant passages: ",
    "Represent this sentence: ",
    "task: search result | query: ",
    "title: none | text: ",
)


@dataclass(frozen=True)
class Embedder:
    server: Server
    request: ClientRequest

    @property
    def url(self) -> str:
        return self.server.client.url

    def embed(self, text: str) -> Vector:
        return self.server.embed(self.request, [text])[0]

    def embed_tokens(self, text: str) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """Return a vector per token, from vLLM's route or that of Text Embeddings Inference; None without them."""
        client, model = self.server.client, self.server.model
        body = {"model": model, "input": text, "task": "token_embed", "use_activation": False}
        reply = client.post("/pooling", body)
        rows = reply.json["data"][0]["data"] if reply.is_ok else None
        if rows is None:
            reply = client.post("/embed_all", {"inputs": text})
            rows = reply.json[0] if reply.is_ok else None
        return None if rows is None else np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class Difference:
    message: str
    is_same: bool = False


def find_cause(
    embedders: tuple[Embedder, Embedder],
    texts: Sequence[str],
    first: Sequence[Vector],
    second: Sequence[Vector],
    cosines: Sequence[float],
) -> Difference:
    """Name the cause, with the check that shows it."""
    normalization = describe_normalization(embedders, first, second)
    if min(cosines) >= PRECISION_COSINE:
        if normalization:
            return Difference(normalization)
        if min(cosines) >= SAME_COSINE:
            return Difference("equal up to rounding", is_same=True)
        message = f"precision: cosine {min(cosines):.6f} for the most different text; another dtype or quantization"
        return Difference(message, is_same=min(cosines) >= 0.999)
    cause = (
        describe_truncation(embedders, texts, cosines)
        or describe_prompt(embedders, texts, first, second)
        or describe_pooling(embedders, texts, first, second)
        or describe_rest(cosines)
    )
    return Difference(f"{cause}; also {normalization}" if normalization else cause)


def describe_normalization(
    embedders: tuple[Embedder, Embedder], first: Sequence[Vector], second: Sequence[Vector]
) -> str | None:
    is_unit = [all(abs(np.linalg.norm(vector) - 1) < 0.01 for vector in vectors) for vectors in (first, second)]
    if is_unit[0] == is_unit[1]:
        return None
    return f"normalization: the vectors of {embedders[is_unit.index(False)].url} are not normalized"


def describe_truncation(
    embedders: tuple[Embedder, Embedder], texts: Sequence[str], cosines: Sequence[float]
) -> str | None:
    """Only long texts differ, and the end of such a text does not change its vector at one of the servers."""
    lengths = [len(text) for text in texts]
    different = [length for length, value in zip(lengths, cosines, strict=True) if value < PRECISION_COSINE]
    same = [length for length, value in zip(lengths, cosines, strict=True) if value >= PRECISION_COSINE]
    if not same or min(different) <= max(same):
        return None
    text = texts[int(np.argmax(lengths))]
    truncating = [embedder.url for embedder in embedders if ignores_end(embedder, text)]
    where = f" at {' and '.join(truncating)}" if truncating else ""
    return f"truncation{where}: only texts of {min(different)} characters and more differ"


def ignores_end(embedder: Embedder, text: str) -> bool:
    try:
        vectors = [embedder.embed(f"{text} {ending}") for ending in ENDINGS]
    except AnswerError:
        return False
    return float(np.abs(vectors[0] - vectors[1]).max()) <= SAME_VECTOR


def describe_prompt(
    embedders: tuple[Embedder, Embedder], texts: Sequence[str], first: Sequence[Vector], second: Sequence[Vector]
) -> str | None:
    """A known prompt before the texts at one server gives the vectors of the other."""
    places = probe_places(texts)
    for embedder, other, targets in ((embedders[0], embedders[1], second), (embedders[1], embedders[0], first)):
        for prompt in PROMPTS:
            if all(cosine(embedder.embed(prompt + texts[i]), targets[i]) >= MATCH_COSINE for i in places):
                return f"prompt: {other.url} prepends {prompt!r}, {embedder.url} does not"
    return None


def describe_pooling(
    embedders: tuple[Embedder, Embedder], texts: Sequence[str], first: Sequence[Vector], second: Sequence[Vector]
) -> str | None:
    """The vectors of tokens of one server, pooled in the ways that are common, give the vectors of both."""
    places = probe_places(texts)
    for embedder in embedders:
        tokens = [embedder.embed_tokens(texts[i]) for i in places]
        if any(rows is None for rows in tokens):
            continue
        pooled = {
            "MEAN": [rows.mean(axis=0) for rows in tokens if rows is not None],
            "CLS": [rows[0] for rows in tokens if rows is not None],
            "LAST": [rows[-1] for rows in tokens if rows is not None],
            "MAX": [rows.max(axis=0) for rows in tokens if rows is not None],
        }
        methods = [match_pooling(pooled, [vectors[i] for i in places]) for vectors in (first, second)]
        if methods[0] and methods[1] and methods[0] != methods[1]:
            return f"pooling: {embedders[0].url} uses {methods[0]}, {embedders[1].url} uses {methods[1]}"
    return None


def match_pooling(pooled: dict[str, list[Vector]], targets: Sequence[Vector]) -> str | None:
    for name, vectors in pooled.items():
        if all(
            len(vector) == len(target) and cosine(vector, target) >= MATCH_COSINE
            for vector, target in zip(vectors, targets, strict=True)
        ):
            return name
    return None


def describe_rest(cosines: Sequence[float]) -> str:
    mean = float(np.mean(cosines))
    if mean < OTHER_MODEL_COSINE:
        return f"another model: the mean cosine is {mean:.3f}"
    return (
        f"pooling, or a prompt that is not among the common ones: texts of all lengths differ, mean cosine {mean:.3f}"
    )


def probe_places(texts: Sequence[str]) -> list[int]:
    """Return the indices of some short texts."""
    return sorted(range(len(texts)), key=lambda i: abs(len(texts[i]) - 30))[:PROBES]

"""The requests of a chaos run: several routes, lengths and encodings, valid and invalid ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from cenote.bench.backends import Vectors, parse_vectors
from cenote.bench.workloads import load_tokenizer, single_token_words
from lab.chaos.expectations import BAD_REQUEST, NOT_FOUND, OK, UNAUTHORIZED

NUM_PER_KIND = 12
NUM_BULK = 4
BULK_TEXTS = 32
SHORT, MEDIUM, LONG = 8, 40, 120  # words of a text

ReadAnswer = Callable[[bytes], Vectors]


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """One request that may be sent many times; `read` makes its answers comparable."""

    kind: str
    path: str
    body: bytes
    status: int = OK
    read: ReadAnswer | None = None  # None: only the status is checked
    has_key: bool = True
    error_code: str | None = None  # that `error.code` must have


@dataclass(frozen=True, slots=True)
class RequestMix:
    """Requests by kind, with the share of each kind."""

    requests: dict[str, list[ChaosRequest]]
    weights: dict[str, float]
    bulk: list[ChaosRequest] = field(default_factory=list)

    @property
    def short(self) -> list[ChaosRequest]:
        """Requests with little work, of a kind that the model supports."""
        return self.requests.get("embed") or self.requests["score"]

    def draw(self, source: random.Random) -> ChaosRequest:
        kinds = list(self.requests)
        kind = source.choices(kinds, [self.weights[kind] for kind in kinds])[0]
        return source.choice(self.requests[kind])

    def all_requests(self) -> list[ChaosRequest]:
        return [request for requests in self.requests.values() for request in requests] + self.bulk

    def without(self, kinds: set[str]) -> RequestMix:
        kept = {kind: requests for kind, requests in self.requests.items() if kind not in kinds}
        return RequestMix(kept, self.weights, [request for request in self.bulk if request.kind not in kinds])


WEIGHTS = {
    "embed": 35.0,
    "embed-base64": 20.0,
    "embed-8": 10.0,
    "embed-long": 5.0,
    "embed-ids": 5.0,
    "rerank": 5.0,
    "score": 5.0,
    "tokenize": 5.0,
    "invalid": 10.0,
}


class TextMaker:
    """Texts of words that are one token each."""

    def __init__(self, model: str | None, seed: int) -> None:
        tokenizer = load_tokenizer(model)
        self.words = single_token_words(tokenizer)
        self.vocabulary_size = tokenizer.get_vocab_size()
        self.source = random.Random(seed)

    def text(self, num_words: int) -> str:
        return " ".join(self.source.choices(self.words, k=num_words))

    def texts(self, count: int, num_words: int) -> list[str]:
        return [self.text(num_words) for _ in range(count)]

    def token_ids(self, count: int) -> list[int]:
        return [self.source.randrange(self.vocabulary_size // 2, self.vocabulary_size) for _ in range(count)]

    def poison(self) -> list[int]:
        """Return token ids that no text of this maker has: the fault hook crashes on them."""
        last = self.vocabulary_size - 1
        return [last, last - 1] * 3 + [last]


def make_mix(texts: TextMaker) -> RequestMix:
    makers: dict[str, Callable[[], ChaosRequest]] = {
        "embed": lambda: embed("embed", texts.text(SHORT)),
        "embed-base64": lambda: embed("embed-base64", texts.text(SHORT), encoding_format="base64"),
        "embed-8": lambda: embed("embed-8", texts.texts(8, MEDIUM), encoding_format="base64"),
        "embed-long": lambda: embed("embed-long", texts.text(LONG)),
        "embed-ids": lambda: embed("embed-ids", [texts.token_ids(SHORT)]),
        "rerank": lambda: rerank(texts.text(SHORT), texts.texts(6, MEDIUM)),
        "score": lambda: score(texts.text(SHORT), texts.texts(2, SHORT)),
        "tokenize": lambda: tokenize(texts.text(MEDIUM)),
    }
    requests = {kind: [make() for _ in range(NUM_PER_KIND)] for kind, make in makers.items()}
    requests["invalid"] = make_invalid(texts)
    bulk = [
        embed("bulk", texts.texts(BULK_TEXTS, length), encoding_format="base64")
        for length in random.Random(0).choices((SHORT, MEDIUM), k=NUM_BULK)
    ]
    return RequestMix(requests, WEIGHTS, bulk)


def embed(kind: str, inputs: str | Sequence[Any], **fields: str) -> ChaosRequest:
    return ChaosRequest(kind, "/v1/embeddings", encode({"input": inputs, **fields}), read=parse_vectors)


def rerank(query: str, documents: Sequence[str]) -> ChaosRequest:
    return ChaosRequest("rerank", "/rerank", encode({"query": query, "documents": documents}), read=read_ranking)


def score(query: str, documents: Sequence[str]) -> ChaosRequest:
    return ChaosRequest("score", "/score", encode({"text_1": query, "text_2": documents}), read=read_scores)


def tokenize(text: str) -> ChaosRequest:
    return ChaosRequest("tokenize", "/tokenize", encode({"prompt": text}), read=read_tokens)


def fresh_embed(texts: TextMaker, num_texts: int, num_words: int) -> ChaosRequest:
    """Return a request with texts of its own: identical inputs in flight would be computed once."""
    request = embed("fresh", texts.texts(num_texts, num_words), encoding_format="base64")
    return replace(request, read=None)


def make_invalid(texts: TextMaker) -> list[ChaosRequest]:
    text = texts.text(SHORT)

    def invalid(body: bytes, status: int = BAD_REQUEST, path: str = "/v1/embeddings") -> ChaosRequest:
        return ChaosRequest("invalid", path, body, status)

    return [
        invalid(b'{"input": '),
        invalid(b"\xff\xfe"),
        invalid(encode({"input": []})),
        invalid(encode({"input": {"a": 1}})),
        invalid(encode({"input": [[10**9]]})),
        invalid(encode({"input": text, "encoding_format": "octal"})),
        invalid(encode({"input": text, "model": "no-such-model"}), NOT_FOUND),
        invalid(encode({"input": text}), NOT_FOUND, "/v1/no_such_route"),
        ChaosRequest("invalid", "/v1/embeddings", encode({"input": text}), UNAUTHORIZED, has_key=False),
    ]


def encode(body: object) -> bytes:
    return msgspec.json.encode(body)


class _Ranked(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranking(msgspec.Struct):
    results: list[_Ranked]


class _Score(msgspec.Struct):
    index: int
    score: float


class _Scores(msgspec.Struct):
    data: list[_Score]


class _Tokens(msgspec.Struct):
    tokens: list[int]


def read_ranking(body: bytes) -> Vectors:
    """Return the score of each document, in the order of the request."""
    results = sorted(msgspec.json.decode(body, type=_Ranking).results, key=lambda result: result.index)
    return np.array([result.relevance_score for result in results], dtype=np.float32)


def read_scores(body: bytes) -> Vectors:
    results = sorted(msgspec.json.decode(body, type=_Scores).data, key=lambda result: result.index)
    return np.array([result.score for result in results], dtype=np.float32)


def read_tokens(body: bytes) -> Vectors:
    return np.array(msgspec.json.decode(body, type=_Tokens).tokens, dtype=np.float32)

"""A fake engine with four-dimensional embeddings, so that tests of the command line load no model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import cenote
from cenote.cli.main import main
from cenote.errors import BadRequest, PoolingError
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import PoolResult, ScoreResult


def vector(text: str) -> list[float]:
    """Return the fake embedding of a text: four numbers derived from its characters."""
    return [float(np.float32((crc32(text.encode()) >> shift & 255) / 255)) for shift in (0, 8, 16, 24)]


@dataclass
class FakeEngine:
    request_checks = SimpleNamespace(check_task=lambda task: None)  # the model has every task
    model_info = SimpleNamespace(supports_images=False)

    requests: list[Any] = field(default_factory=list)
    on_call: Callable[[int], None] = lambda number: None

    def pool_sync(self, request: PoolRequest, on_progress: Any = None) -> list[PoolResult | PoolingError]:
        self.requests.append(request)
        self.on_call(len(self.requests))
        return [
            self._pool_chunks(item) if isinstance(item, ChunkedDocument) else self._pool_text(request, str(item))
            for item in request.inputs
        ]

    def score_sync(self, request: ScoreRequest, on_progress: Any = None) -> list[ScoreResult | PoolingError]:
        self.requests.append(request)
        self.on_call(len(self.requests))
        queries = list(request.queries) * (len(request.documents) if len(request.queries) == 1 else 1)
        return [self._score_pair(query, text) for query, text in zip(queries, request.documents, strict=True)]

    def _pool_text(self, request: PoolRequest, text: str) -> PoolResult | PoolingError:
        if text == "too long":
            return BadRequest("input has 900 tokens, fake reads at most 512")
        row = np.array(vector(text), np.float32)
        num_words = len(text.split())
        data = np.tile(row, (num_words, 1)) if request.task.startswith("token") else row
        return PoolResult(data, np.zeros(num_words, dtype=np.int32), num_words, num_words)

    def _pool_chunks(self, document: ChunkedDocument) -> PoolResult | PoolingError:
        if document.chunks == ("too long",):
            return BadRequest("3 chunks have 900 tokens, the limit is 512")
        num_words = len("".join(document.chunks).split())
        rows = np.array(list(map(vector, document.chunks)), np.float32)
        return PoolResult(rows, np.zeros(num_words, dtype=np.int32), num_words, num_words)

    def _score_pair(self, query: str, text: str) -> ScoreResult | PoolingError:
        if text == "too long":
            return BadRequest("input has 900 tokens, fake reads at most 512")
        num_common = len(set(query.split()) & set(text.split()))
        return ScoreResult(num_common / 10, np.zeros(3, dtype=np.int32), 3, 3)


class FakeLLM:
    """Replace `LLM`; all instances share one engine."""

    shared_engine = FakeEngine()
    last_options: dict[str, Any] = {}

    def __init__(self, **options: Any) -> None:
        FakeLLM.last_options = options
        self.engine = FakeLLM.shared_engine
        self.labels = ["cold", "warm", "hot", "boiling"]
        self.supported_tasks = ("embed", "classify")

    def close(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    monkeypatch.setitem(cenote.__dict__, "LLM", FakeLLM)
    FakeLLM.shared_engine = FakeEngine()
    FakeLLM.last_options = {}
    yield FakeLLM.shared_engine


@dataclass
class CommandResult:
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def cenote_command(engine: FakeEngine, capfd: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Run `cenote ARGUMENTS` on the fake model, in this process."""

    def call(*argv: object) -> CommandResult:
        status = main([str(word) for word in argv])
        out, err = capfd.readouterr()
        return CommandResult(status, out, err)

    return call


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Put bytes on standard input."""
    streams = []

    def put(content: bytes) -> None:
        path = tmp_path / "stdin"
        path.write_bytes(content)
        stream = open(path)  # noqa: SIM115
        streams.append(stream)
        monkeypatch.setattr("sys.stdin", stream)

    yield put
    for stream in streams:
        stream.close()
